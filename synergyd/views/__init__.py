"""The content of the store as users read it: the records that `--json` and the REST service give out."""

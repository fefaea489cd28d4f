"""`synergyctl simulate`, and the process of a what-if run."""

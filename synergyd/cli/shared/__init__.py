"""The code that several verbs share: settings and store, job names, tables, files that are written."""

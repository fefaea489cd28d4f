"""What several verbs use: settings and store, job names, tables, files that are written."""

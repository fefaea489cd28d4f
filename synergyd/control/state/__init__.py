"""The knowledge of jobs and nodes from one look at the cluster to the next. Pure."""

"""The GPUs that each job gets, and the nodes that they are on."""

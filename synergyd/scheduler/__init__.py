"""Which GPUs each job gets, and on which nodes."""

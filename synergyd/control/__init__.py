"""What happens to jobs between decisions: the resize state machine, and all that is remembered of each job. Pure."""

"""The resize state machine, and all that is remembered of each job between decisions. Pure."""

"""The resize of one job as a state machine, and what is remembered of it. Pure."""

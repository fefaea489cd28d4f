"""Warm start: a process that has imported torch waits, and becomes a training process of the next run by a fork."""

"""The check of a node before a run: a child process that measures GPUs, memory and links, and what starts it."""

"""Task-level simulation of jobs that share links: forward, backward, all-reduce, iteration by iteration."""

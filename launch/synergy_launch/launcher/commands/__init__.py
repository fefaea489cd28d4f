"""The commands that a job's nodes run, and the batch script around them."""

"""What the GPUs of a node do, as their drivers say it, for the reports."""

"""On the node, outside the training processes, no torch: from Slurm's environment and a plan to torchrun, and reports."""

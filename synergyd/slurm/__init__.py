"""The only code that talks to Slurm."""

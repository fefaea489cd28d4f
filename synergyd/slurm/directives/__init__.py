"""`#SYNERGY` lines of jobs' scripts and of slurm.conf: one grammar, read and written."""

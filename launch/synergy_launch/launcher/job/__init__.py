"""What Slurm and the daemon say of this job: its allocation, secret, plan, preemption, and where its output goes."""

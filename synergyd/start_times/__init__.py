"""When waiting jobs will start and end, and why they wait: pure functions of what Slurm shows and of how long jobs have run here."""

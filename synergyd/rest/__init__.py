"""The REST service, a process beside the daemon: users see and steer their jobs, with the rights that Slurm gives them."""

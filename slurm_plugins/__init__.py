"""Files for a site's Slurm: job_submit module, hook, epilog, systemd units, example settings."""

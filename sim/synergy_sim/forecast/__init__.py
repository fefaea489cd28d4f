"""What Synergy would have changed on a cluster, from its accounting history alone: a fast queue model of Slurm with and without it."""

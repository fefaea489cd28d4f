"""The connections between the launchers of a job's nodes, and how they find each other."""

"""The nodes of each job: from GPU counts to names."""

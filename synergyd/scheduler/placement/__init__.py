"""Which nodes: from GPU counts to names."""

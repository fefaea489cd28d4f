"""What one job could achieve on given GPUs, and what its reports teach."""

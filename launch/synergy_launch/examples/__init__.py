"""Training scripts to try Synergy with; each runs under torchrun, with or without Synergy."""

"""Memory checkpoints, as the launchers hold them on two nodes each."""

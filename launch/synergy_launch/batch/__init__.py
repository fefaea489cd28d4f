"""The batch of a run: gradient noise scale, learning rate, order of the examples."""

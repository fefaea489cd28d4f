"""`synergyctl plan`."""

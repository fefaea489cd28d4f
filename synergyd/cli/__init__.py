"""One file or folder per verb of synergyctl, and the programs' own entries."""

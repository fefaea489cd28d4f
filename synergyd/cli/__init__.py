"""One file per verb of synergyctl, and synergyd's own entry."""

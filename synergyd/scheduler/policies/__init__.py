"""Who gets what: Synergy's own policy and those that it is compared with, one a file."""

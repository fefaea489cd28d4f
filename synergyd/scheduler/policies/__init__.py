"""The policies: Synergy's own and those that it is compared with, one a file."""

"""The link arbiter: a port where running jobs ask before they send over shared links."""

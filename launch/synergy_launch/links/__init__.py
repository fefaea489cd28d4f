"""A job's side of the link arbiter: its gradient all-reduces ask before they are sent."""

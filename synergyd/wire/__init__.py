"""What daemon and job say to each other: one encoder and one decoder for each message. Needs the standard library alone."""

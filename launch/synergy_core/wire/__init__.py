"""Messages between daemon and job: one encoder and one decoder for each. Needs only the standard library."""

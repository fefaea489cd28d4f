"""The simulator: recorded or made-up clusters run through the very code of the daemon, on ground truth of their own."""

"""What the user's training script is, and what it does wrong."""

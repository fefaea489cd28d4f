"""The performance model's parameters fitted to measured runs, and the file that keeps them."""

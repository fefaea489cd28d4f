"""What ended or stopped a run on this node, and what follows from it."""

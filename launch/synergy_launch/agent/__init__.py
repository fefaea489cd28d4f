"""Inside each training process, whatever the framework: steps measured, checkpoints taken, status told to the launcher."""

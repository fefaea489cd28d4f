"""The part inside each training process, whatever the framework: steps measured, checkpoints taken, status reported to the launcher."""

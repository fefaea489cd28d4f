"""Inside training processes on megatron-core: any plan's run, its gradient norms, its resharded checkpoints."""

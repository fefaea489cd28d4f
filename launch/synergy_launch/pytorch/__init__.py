"""A plain PyTorch training loop: DDP, FSDP2 or one process."""

"""A plain PyTorch training loop: DDP, FSDP2 with tensor, context and pipeline parallel, or one process."""

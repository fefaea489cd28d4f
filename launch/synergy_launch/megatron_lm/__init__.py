"""A Megatron-LM script from outside, no torch: its arguments under a plan, its log, its workers."""

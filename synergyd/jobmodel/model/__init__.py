"""The performance and memory models: formulas over the dimensions of models and the figures of GPUs."""

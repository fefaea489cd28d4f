"""The performance and memory models: formulas over models' dimensions and GPUs' figures."""

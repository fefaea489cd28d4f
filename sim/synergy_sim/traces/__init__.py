"""Readers of workloads and of the measurements that are their ground truth."""

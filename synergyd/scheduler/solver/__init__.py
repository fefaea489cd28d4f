"""Solvers of the allocation: exact, by prices, greedy."""

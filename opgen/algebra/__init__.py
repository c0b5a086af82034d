"""Exact integer algebra of indices. Knows nothing of ops."""

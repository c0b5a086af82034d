"""What of PyTorch an op was tried with on this machine, and what came out: `opgen support`."""

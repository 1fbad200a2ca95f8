"""Learning on real data: three modules trained on the emulated card and in PyTorch, from the same parameters."""

"""Memory: the places of parameters and buffers in the banks."""

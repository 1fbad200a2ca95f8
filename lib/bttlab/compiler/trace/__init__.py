"""From a PyTorch module to the compiler's graph."""

from bttlab.compiler.trace.tracer import trace

__all__ = ["trace"]

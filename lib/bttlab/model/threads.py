"""PyTorch on one thread, for what changes a module or the process for a moment."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_one_at_a_time = threading.RLock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Run PyTorch on one thread: small products are faster, and results do not depend on the number of threads.

    A second thread waits: within this context a trace changes what the whole process has, such as the default dtype,
    the generators of random numbers and `forward` of classes, and must put back what was there before the first one.
    """
    with _one_at_a_time:
        count = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(count)

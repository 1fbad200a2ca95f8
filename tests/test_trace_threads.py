"""Traces in two threads: JupyterLab handles widgets beside the cell that runs."""

import threading

import pytest
import torch
from torch import nn

from bttlab.compiler.trace import trace
from bttlab.tensor import TTLinear

WIDTH, WORDS, LENGTH = 16, 12, 4
WAIT = 0.5  # seconds for the other thread, which waits for the end of this one's trace


class Net(nn.Module):
    """A table, a tensor-train layer and a head; `beside` is called in `forward`."""

    def __init__(self, beside):
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3)
        self.layer = TTLinear(WIDTH, WIDTH, (4, 4), (4, 4), 2)
        self.beside = beside

    def forward(self, tokens):
        self.beside(self.head.weight.dtype)
        return self.head(self.layer(self.table(tokens)))


def in_thread(action):
    """Start a thread; return it and what `action` returns or raises, which comes later."""
    found = []

    def run():
        try:
            found.append(action())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


@pytest.fixture
def settings():
    """What a trace changes of the process; as it was at the end."""
    before = torch.get_default_dtype(), TTLinear.forward
    yield before
    torch.set_default_dtype(before[0])
    TTLinear.forward = before[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # while it is recorded, and while it is checked
def test_two_traces_leave_the_process_as_it_was(settings, dtype):
    """The first one ended while the second had what the first had changed: PyTorch stayed in double precision."""
    first_is_in, second_is_in, first_is_over = (threading.Event() for _ in range(3))

    def in_first(found):
        if found == dtype and not first_is_in.is_set():
            first_is_in.set()
            second_is_in.wait(WAIT)

    def in_second(found):
        if found == dtype:
            second_is_in.set()
            first_is_over.wait(WAIT)

    one, other = Net(in_first), Net(in_second)  # before: a trace refuses random numbers, which these draw

    def first():
        try:
            return trace(one, LENGTH)
        finally:
            first_is_over.set()

    first_thread, found = in_thread(first)
    assert first_is_in.wait(60)
    second_thread, more = in_thread(lambda: trace(other, LENGTH))
    first_thread.join()
    second_thread.join()
    graphs = [[operation.kind for operation in model.graph.operations] for model in (*found, *more)]
    assert graphs[0] == graphs[1] and "linear" in graphs[0]
    assert (torch.get_default_dtype(), TTLinear.forward) == settings

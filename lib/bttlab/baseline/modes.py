"""The ways to run a step: eager, or captured in CUDA graphs.

At batch 1 a GPU waits for its host: a step is some hundred kernels of a few microseconds each. CUDA graphs launch all
of them at once.
"""

from collections.abc import Callable
from functools import partial
from threading import Event

import torch

from bttlab.baseline.step import Task

Stepper = Callable[[int], None]
FIRST_STEPS = 3  # of each length: PyTorch and cuBLAS set things up
EXECUTION_MODES = ("eager", "graphs")  # graphs: a CUDA graph of the whole step (sample, passes, update) for each length


def modes_of(device: str) -> tuple[str, ...]:
    """Return the names of the modes that a kind of device has; eager comes first.

    Parameters
    ----------
    device : {"cpu", "cuda"}
        The kind.

    Returns
    -------
    tuple of str
        The names.
    """
    return EXECUTION_MODES if device == "cuda" else EXECUTION_MODES[:1]


def prepare(task: Task, mode: str, stop: Event) -> Stepper:
    """Capture what a mode of `EXECUTION_MODES` needs for every length of utterance in the task.

    The task is trained on a little meanwhile: restart it afterwards. `stop` ends the preparation between two lengths.
    The result trains on the sample of an index. Captured steps find their samples by the cursor: call it for
    consecutive indices from the one the cursor is at.
    """
    examples = {length: index for index, length in enumerate(task.lengths)}
    if mode == "graphs":
        return _captured(task, task.loss, examples, stop)
    step = partial(task.step, function=task.loss)
    for index in examples.values():
        for _ in range(FIRST_STEPS):
            if not stop.is_set():
                step(index)
    return step


def _captured(task: Task, function, examples: dict[int, int], stop: Event) -> Stepper:
    replays = {}
    torch.cuda.synchronize()  # what built the task, on another stream than this
    stream = torch.cuda.Stream()
    # Graphs of one pool use the same memory in turn: nothing but parameters, losses and cursor outlives a step.
    pool = torch.cuda.graph_pool_handle()
    for length in sorted(examples, reverse=True):  # the longest first: the others fit into its memory
        if stop.is_set():
            break
        step = partial(task.step_at_cursor, length, function)
        with torch.cuda.stream(stream):
            for _ in range(FIRST_STEPS):
                task.cursor.fill_(examples[length])
                step()
        replays[length] = capture(step, stream, pool)
    return lambda index: replays[task.lengths[index]]()


def capture(step: Callable[[], None], stream, pool) -> Callable[[], None]:
    """Capture a step in a CUDA graph, without running it; return what launches the graph.

    The step has run before, on `stream`: autograd keeps to the stream on which it first saw a parameter.
    """
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        step()
    return graph.replay

"""Training in several local processes, the ranks, that speak through gloo on the CPU.

Each rank makes the same `Training`, with the same methods, and takes the same steps; the method in charge says what
lies where (`Parallel.place`) and how a batch's losses come about (`Method.losses`). The calling process hands on the
losses of rank 0, and in the end has the whole model. Ranks meet in a file of a private folder and listen on loopback
alone; Gloo asks no password there (docs/security.md). They end with the process that started them, even if
it is killed: rank 0 then finds the pipe to it broken, and the others find rank 0 gone.
"""

import os
import signal
import tempfile
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from bttlab.errors import BttlabError
from bttlab.model import batch_losses
from bttlab.processes import safe_path
from bttlab_methods.memory import measure_memory
from bttlab_methods.method import Method
from bttlab_methods.setting import MethodError
from bttlab_methods.training import Batch, OnBatch, Training

CLOCK = "processor time of the busiest of {} processes (time.process_time); waiting for the others is none"
START = "forkserver"
# They need whole matrices, or parameters as the model has them; a rank has a part of each.
WHOLE_MATRICES = frozenset(
    {"8bit-optimizer", "galore", "initialisation", "lamb", "lars", "tensor-galore", "tensor-int4", "tensor-int8"}
)
PATIENCE = 0.2  # seconds between two looks at `stop`


@dataclass(frozen=True)
class Parallel(Method):
    """Train in several processes.

    Parameters
    ----------
    processes : int
    """

    family = "parallelism"
    changes = frozenset({"processes"})
    # What these do between steps, or find out, would stay in the ranks; a stage expects as many tokens as there are.
    excludes = frozenset({"encoders", "ranks", "samples", "subspace", "tokens", "trained parameters", "weights kept"})

    trains_here = False

    processes: int = 2

    def __post_init__(self) -> None:
        if self.processes < 2:
            raise MethodError(f"method {self.name}: processes is {self.processes}: it must be at least 2")

    def place(self, training: Training) -> None:
        """Leave this rank what it is to hold of the model, before there is an optimizer."""

    def prepare_optimizer(self, training: Training) -> None:
        """Change the rank's optimizer, which was just made."""

    def state(self, training: Training) -> dict[str, Tensor]:
        """Return what this rank knows of the trained model; every rank is asked at once."""
        state = training.model.state_dict()
        return {name: value.full_tensor() if is_split(value) else value for name, value in state.items()}

    def train(self, training: Training, on_batch: OnBatch | None, stop: Event | None) -> dict[str, Any]:
        """Train in ranks; returns the memory of the fullest, with that of each under "ranks"."""
        if training.device.type != "cpu":
            raise MethodError(f"{self.name} runs its processes on the CPU, not {training.device}; pass --device cpu")
        for method in training.methods:
            if type(method).__module__.startswith("bttlab_plugin_"):
                raise MethodError(f"{method.name} comes from a file, and ranks import only what is installed")
        with tempfile.TemporaryDirectory(prefix="bttlab-") as folder:
            self._run_ranks(training, Path(folder), on_batch, stop)
            parts = [torch.load(_result(Path(folder), rank), weights_only=True) for rank in range(self.processes)]
        state: dict[str, Tensor] = {}
        for part in parts:
            state |= part["state"]
        training.model.load_state_dict(state)
        training.seconds_spent = max(part["seconds"] for part in parts)
        training.clock = CLOCK.format(self.processes)
        ranks = [part["memory"] for part in parts]
        return max(ranks, key=lambda memory: memory["peak"]["value"]) | {"ranks": ranks}

    def _run_ranks(self, training: Training, folder: Path, on_batch: OnBatch | None, stop: Event | None) -> None:
        # A server that has imported all this forks the ranks: they start at once, but for the first time.
        torch.multiprocessing.set_forkserver_preload([__name__])
        context = torch.multiprocessing.get_context(START)
        stopped = context.Event()
        receiver, sender = context.Pipe(duplex=False)
        common = (self, training.asked_for, training.methods, folder, torch.get_num_threads(), stopped, sender)
        with safe_path():
            started = torch.multiprocessing.start_processes(_rank, common, self.processes, False, True, START)
        sender.close()
        running = {process.sentinel: process for process in started.processes}
        try:
            while running or (receiver is not None and receiver.poll()):  # what the last ranks said may still lie there
                ready = wait([receiver, *running] if receiver is not None else list(running), PATIENCE)
                if stop is not None and stop.is_set():
                    stopped.set()
                if receiver in ready:
                    try:
                        losses = receiver.recv()
                    except EOFError:
                        receiver = None
                    else:
                        training.count += len(losses)
                        training.steps += 1
                        if on_batch is not None:
                            on_batch(losses)
                for sentinel in running.keys() & set(ready):
                    process = running.pop(sentinel)
                    process.join()
                    if process.exitcode:
                        raise MethodError(_failure(folder, process.exitcode))
        finally:
            for process in started.processes:
                process.terminate()
                process.join()


class _Stop:
    """The caller's wish to stop, in which all ranks agree."""

    def __init__(self, event) -> None:
        self._event = event

    def is_set(self) -> bool:
        """Tell whether to stop; every rank has to ask."""
        wish = torch.tensor(int(self._event.is_set()))
        dist.all_reduce(wish, dist.ReduceOp.MAX)
        return bool(wish)


def _rank(rank: int, method: Parallel, setting, methods, folder: Path, threads: int, stopped, sender: Connection):
    """Train as one of the ranks: the target of a process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt is told once, by the process that started this one
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        store = dist.FileStore(str(folder / "meeting"), method.processes)
        torch.set_num_threads(threads)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=method.processes)
        training = Training(setting, methods)
        method.place(training)
        training.restart_optimizer()
        method.prepare_optimizer(training)
        training.run(sender.send if rank == 0 else None, _Stop(stopped))
        outcome = {
            "memory": measure_memory(training),
            "seconds": training.seconds_spent,
            "state": method.state(training),
        }
        torch.save(outcome, _result(folder, rank))
        dist.barrier()  # a rank that leaves early would break what the others still say
        dist.destroy_process_group()
    except Exception as error:
        text = str(error) if isinstance(error, BttlabError) else traceback.format_exception_only(error)[-1].strip()
        try:
            with (folder / "error").open("x") as file:  # the first error is the cause of those that follow
                file.write(text if isinstance(error, BttlabError) else f"rank {rank}: {text.splitlines()[0]}")
        except FileExistsError:
            pass
        os._exit(1)  # not the usual way out, which would wait for the others


def _result(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.pt"


def _failure(folder: Path, code: int) -> str:
    error = folder / "error"
    if error.exists():
        return error.read_text()
    return f"a rank ended with exit code {code} and said nothing; is there enough memory for all of them?"


def is_split(tensor: Tensor) -> bool:
    """Tell whether a tensor is a `torch.distributed.tensor.DTensor`, whose import takes seconds."""
    return hasattr(tensor, "full_tensor")


def shared_losses(model: nn.Module, batch: Batch) -> Tensor:
    """Return the losses of a batch of which each rank computes its share.

    Parameters
    ----------
    model : nn.Module
        Whose gradients are averaged over the ranks.
    batch : Batch
        The same in each rank.

    Returns
    -------
    Tensor, shape (n,)
        All the losses; the gradient is the one of this rank's, times the number of ranks, so that the average is the
        whole batch's gradient.
    """
    ranks, count = dist.get_world_size(), len(batch.samples)
    mine = np.arange(dist.get_rank(), count, ranks)
    computed = batch_losses(model, batch.samples[mine if len(mine) else [0]])  # every rank has to take part
    share = torch.zeros(count).index_add(0, torch.from_numpy(mine), computed[: len(mine)]) + 0 * computed.sum()
    losses = share.detach().clone()
    dist.all_reduce(losses)
    return losses + ranks * (share - share.detach())

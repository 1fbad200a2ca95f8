"""Run the same function in several processes of this machine that exchange tensors by gloo."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from threading import Event
from typing import Any

import torch
from torch import distributed, multiprocessing

from bttlab_methods.setting import MethodError


def in_processes(count: int, function: Callable[..., Any], arguments: tuple, stop: Event | None) -> list[dict]:
    """Return the dataclasses that `function(*arguments)` gives in `count` processes, as dictionaries by rank.

    Raises MethodError if one fails, or `stop` is set meanwhile.
    """
    with tempfile.TemporaryDirectory() as folder:
        started = multiprocessing.spawn(_work, (count, folder, function, arguments), count, join=False)
        try:
            while not started.join(timeout=0.5):
                if stop is not None and stop.is_set():
                    raise MethodError("stopped before the end: there is nothing to tell; train again")
        except multiprocessing.ProcessRaisedException as error:
            last = str(error).strip().splitlines()[-1]
            raise MethodError(last.partition(": ")[2] or last) from None
        finally:
            for process in started.processes:
                process.kill()
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(count)]


def _work(rank: int, count: int, folder: str, function: Callable[..., Any], arguments: tuple) -> None:
    torch.set_num_threads(1)
    store = distributed.FileStore(f"{folder}/store", count)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=count)
    try:
        (Path(folder) / f"{rank}.json").write_text(json.dumps(asdict(function(*arguments))))
    finally:
        distributed.destroy_process_group()

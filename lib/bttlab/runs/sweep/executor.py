"""Executors of a sweep: processes of this machine, which use no network, or the workers of a Dask cluster."""

import contextlib
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bttlab.runs.sweep.task import ClusterError, take_stop_event
from bttlab.util.plugins import missing_package
from bttlab.util.processes import safe_path, usable_processors
from bttlab.util.signals import NotedSignals

if TYPE_CHECKING:
    from distributed import Client

WORKER_BYTES = 1_500_000_000  # that PyTorch, pynq and a corpus take of a worker's memory, with room to spare
CONNECT_SECONDS = 10
END_SECONDS = 5  # that processes without a trial, and a cluster, may take to end
LIMIT = Path("/sys/fs/cgroup/memory.max")


class NoInterrupt(NotedSignals):
    """A context in which Ctrl-C has no effect."""

    numbers = (signal.SIGINT,)


class LocalPool:
    """Processes of this machine, which start when trials are handed out; after one has died, all start again."""

    def __init__(self, workers: int):
        self.workers = workers
        context = multiprocessing.get_context("spawn")
        with safe_path():
            resource_tracker.ensure_running()  # now: whoever starts it unblocks SIGINT
        self._stop, self._context = context.Event(), context
        self._before = set(multiprocessing.active_children())
        self._executor = self._new()

    def _new(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self.workers, self._context, initializer=take_stop_event, initargs=(self._stop,))

    def submit(self, *arguments: Any) -> Any:
        """Submit a call, as an executor does. Processes that it starts block SIGINT: Ctrl-C is for this one."""
        with safe_path():  # no module of the folder that we happen to be in
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                return self._executor.submit(*arguments)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def restart(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = self._new()

    def begin(self) -> None:
        """Begin a sweep: one that was stopped before has left processes that end their trials."""
        if self._stop.is_set():
            self._stop = self._context.Event()
            self.restart()

    def check(self) -> None:
        """Processes of this machine need no check."""

    def stop(self) -> None:
        """Ask the trials to save their state and end."""
        self._stop.set()

    def close(self) -> None:
        self._stop.set()
        self._executor.shutdown(wait=False, cancel_futures=True)
        end = time.monotonic() + END_SECONDS
        for process in set(multiprocessing.active_children()) - self._before:
            process.join(max(0.0, end - time.monotonic()))
            process.kill()
            process.join(END_SECONDS)


class Cluster:
    """The workers of a user's Dask cluster."""

    def __init__(self, client: "Client"):
        self._client = client
        self.begin()
        self.check()

    def begin(self) -> None:
        """Begin a sweep: an executor that was stopped takes no more trials."""
        self._executor = self._client.get_executor(pure=False, retries=2)

    def submit(self, *arguments: Any) -> Any:
        return self._executor.submit(*arguments)

    def restart(self) -> None:
        """Raise an error: Dask itself repeats what a worker that died had begun."""
        raise ClusterError(f"{self.workers} workers died with a trial; see their logs")

    def check(self) -> None:
        """Raise ClusterError if the scheduler has gone, or a worker has several threads; count the workers."""
        if self._client.status != "running":
            address = self._client.scheduler.address  # pyright: ignore[reportOptionalMemberAccess]
            raise ClusterError(
                f"the scheduler at {address} has gone; finished trials stay: run the same command again to go on"
            )
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        if any(worker["nthreads"] != 1 for worker in workers.values()):
            raise ClusterError("a worker has several threads, and a process trains one trial at a time: --nthreads 1")
        self.workers = len(workers)

    def stop(self) -> None:
        self._executor.shutdown(wait=False)

    def close(self) -> None:
        with contextlib.suppress(TimeoutError, OSError):
            self._executor.shutdown(wait=False)
            self._client.close(END_SECONDS)


@contextlib.contextmanager
def open_executor(scheduler: str | None = None, workers: int | None = None) -> Iterator[LocalPool | Cluster]:
    """Start processes on this machine, or connect to a Dask scheduler; all ends with the context.

    Parameters
    ----------
    scheduler : str, optional
        Address such as tls://host:8786, with the certificates of Dask's own configuration; by default none.
    workers : int, optional
        Number of processes on this machine; by default what cores and memory allow.

    Yields
    ------
    LocalPool or Cluster
        Runs the trials.

    Raises
    ------
    ClusterError
        If the scheduler does not answer, or a worker has several threads.
    """
    if workers is not None and (workers < 1 or scheduler is not None):
        raise ClusterError(f"--workers {workers}: at least 1 process here; with --scheduler leave it out")
    opened = LocalPool(workers or _usual_count()) if scheduler is None else Cluster(_connect(scheduler))
    try:
        yield opened
    finally:
        with NoInterrupt():  # another Ctrl-C is not to leave any behind
            opened.close()


def _usual_count() -> int:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # no limit of a control group
        memory = min(memory, int(LIMIT.read_text()))
    return max(1, min(usable_processors(), memory // WORKER_BYTES))


def _connect(address: str) -> "Client":
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        raise ClusterError(missing_package(error, "--scheduler") or str(error)) from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        return Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TypeError, TimeoutError) as error:  # TypeError: TLS without a certificate
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ClusterError(
            f"no scheduler answers at {address} ({reason}); see whether it runs, and whether Dask's configuration here "
            "has its certificate (distributed.comm.tls); or leave --scheduler out to run on this machine"
        ) from None


def open_to_all(scheduler: str | None) -> str:
    """Return a warning for a scheduler without TLS, else an empty string."""
    if scheduler is None or scheduler.startswith(("tls://", "wss://")):
        return ""
    return (
        f"{scheduler} is not TLS: everybody who reaches it, or this process, over the network runs code in both; "
        "docs/experiments.md shows how to start a cluster with certificates"
    )

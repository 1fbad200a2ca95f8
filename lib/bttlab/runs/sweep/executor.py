"""Executors of a sweep: processes of this machine, which use no network, or the workers of a Dask cluster."""

import contextlib
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bttlab.runs.sweep.task import cards, identity, take_stop_event
from bttlab.runs.sweep.trials import CARD
from bttlab.util.errors import BttlabError
from bttlab.util.plugins import missing_package
from bttlab.util.processes import safe_path, usable_processors

if TYPE_CHECKING:
    from distributed import Client

WORKER_BYTES = 1_500_000_000  # that PyTorch, pynq and a corpus take of a worker's memory, with room to spare
CONNECT_SECONDS = 10
ANSWER_SECONDS = 120  # that a worker may take to start and to name its versions
END_SECONDS = 5  # that processes without a trial, and a cluster, may take to end
LIMIT = Path("/sys/fs/cgroup/memory.max")


class ClusterError(BttlabError):
    """Raised if a sweep cannot run on a cluster."""


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

    def __init__(self, client: "Client", resources: Mapping[str, float]):
        self._client = client
        self._executor: Executor = client.get_executor(pure=False, retries=2, resources=dict(resources) or None)
        self.workers = len(client.scheduler_info(n_workers=-1)["workers"])

    def submit(self, *arguments: Any) -> Any:
        return self._executor.submit(*arguments)

    def restart(self) -> None:
        """Raise an error: Dask itself repeats what a worker that died had begun."""
        raise ClusterError(f"{self.workers} workers died with a trial; see their logs")

    def check(self) -> None:
        """Raise ClusterError if the scheduler has gone; note how many workers there are."""
        if self._client.status != "running":
            address = self._client.scheduler.address  # pyright: ignore[reportOptionalMemberAccess]
            raise ClusterError(
                f"the scheduler at {address} has gone; finished trials stay: run the same command again to go on"
            )
        self.workers = len(self._client.scheduler_info(n_workers=-1)["workers"])

    def stop(self) -> None:
        self._executor.shutdown(wait=False)

    def close(self) -> None:
        with contextlib.suppress(TimeoutError, OSError):
            self._executor.shutdown(wait=False)
            self._client.close(END_SECONDS)


@contextlib.contextmanager
def open_executor(
    scheduler: str | None = None,
    workers: int | None = None,
    resources: Mapping[str, float] | None = None,
    security: Any = None,
) -> Iterator[LocalPool | Cluster]:
    """Start processes on this machine, or connect to a Dask scheduler; all ends with the context.

    Parameters
    ----------
    scheduler : str, optional
        Address of one, such as tls://host:8786.
    workers : int, optional
        Processes to start here; by default as many as cores and memory allow.
    resources : mapping, optional
        What a trial takes. Processes that start here offer the cards of this machine, and nothing else.
    security : distributed.Security, optional
        For a scheduler, by default what Dask's own configuration says.

    Raises
    ------
    ClusterError
        If the scheduler does not answer, its workers do not fit, or processes here cannot offer what a trial takes.
    """
    resources = dict(resources or {})
    if scheduler is not None:
        if workers is not None:
            raise ClusterError(f"--workers {workers} is for workers on this machine; {scheduler} has its own")
        client = _connect(scheduler, security)
        try:
            check_cluster(client, resources)
            opened: LocalPool | Cluster = Cluster(client, resources)
        except BaseException:
            client.close(END_SECONDS)
            raise
    else:
        opened = LocalPool(_count(workers, resources))
    try:
        yield opened
    finally:
        with no_interrupt():  # another Ctrl-C is not to leave any behind
            opened.close()


def _count(workers: int | None, resources: Mapping[str, float]) -> int:
    """Return how many processes to start for trials that take these resources."""
    if workers is not None and workers < 1:
        raise ClusterError(f"--workers {workers}: give at least 1")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # no limit of a control group
        memory = min(memory, int(LIMIT.read_text()))
    most = max(2, 2 * memory // WORKER_BYTES)
    if workers is not None and workers > most:
        raise ClusterError(f"--workers {workers}: the memory here has room for {most}; give at most {most}")
    count = workers or max(1, min(usable_processors(), memory // WORKER_BYTES))
    for resource, amount in resources.items():
        if resource != CARD or amount > 1:
            raise ClusterError(
                f"a trial takes {resource}={amount:g}, which no worker that starts here has; leave it out, or give "
                "--scheduler with the address of one whose workers offer it"
            )
    if CARD in resources:
        if not cards():
            raise ClusterError(
                f"a trial takes {CARD}=1, and PYNQ finds no card on this machine; take device: emulated, or "
                "--scheduler with the address of one whose workers have cards"
            )
        count = min(count, len(cards()))
    return count


def _connect(address: str, security: Any) -> "Client":
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        raise ClusterError(missing_package(error, "--scheduler") or str(error)) from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        return Client(address, timeout=CONNECT_SECONDS, security=security)
    except (OSError, ValueError, TypeError, TimeoutError) as error:  # TypeError: TLS without a certificate
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ClusterError(
            f"no scheduler answers at {address} ({reason}); see whether it runs, and whether Dask's configuration here "
            "has its certificate (distributed.comm.tls); or leave --scheduler out to run on this machine"
        ) from None


def check_cluster(client: "Client", resources: Mapping[str, float]) -> None:
    """Check that a cluster can run the trials, with the versions and sources of this process.

    Parameters
    ----------
    resources : mapping of str to float
        What a trial takes of its worker.

    Raises
    ------
    ClusterError
        In one line: no workers, several threads in one, a worker that does not answer, other versions or sources than
        here, a resource nobody has, a card that is offered where there is none.
    """
    address = client.scheduler.address  # pyright: ignore[reportOptionalMemberAccess]
    workers = client.scheduler_info(n_workers=-1)["workers"]
    if not workers:
        raise ClusterError(f"{address} has no workers; start some with: dask worker {address} --nthreads 1")
    for name, worker in workers.items():
        if worker["nthreads"] != 1:
            raise ClusterError(
                f"worker {name} has {worker['nthreads']} threads, and a process trains one trial at a time; start it "
                "with --nthreads 1, and as many as the machine has cores with --nworkers"
            )
    for resource, amount in resources.items():
        if not any(worker["resources"].get(resource, 0) >= amount for worker in workers.values()):
            way_out = ", or take device: emulated" if resource == CARD else ""
            raise ClusterError(
                f"a trial takes {resource}={amount:g}, and none of the {len(workers)} workers at {address} has it; "
                f"start one with: dask worker {address} --nthreads 1 --resources {resource}={amount:g}{way_out}"
            )

    def ask(function: Callable[[], Any], name: str) -> Any:
        try:
            return client.submit(function, workers=[name], pure=False).result(ANSWER_SECONDS)
        except Exception as error:  # a limit, a worker that died, a package that it lacks
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ClusterError(f"worker {name} does not name its versions ({reason}); see its log") from None

    here = identity()
    for name in workers:
        there = ask(identity, name)
        for what in here | there:
            if here.get(what) != there.get(what):
                raise ClusterError(
                    f"worker {name} has {what} {there.get(what, 'none')}, this process {here.get(what, 'none')}; give "
                    "both the same checkout and the same packages: results are to be equal to the bit"
                )
        if workers[name]["resources"].get(CARD) and not ask(cards, name):
            raise ClusterError(
                f"worker {name} offers {CARD}, and PYNQ finds no card on its machine; start it without --resources "
                f"{CARD}=1, or see what bttlab doctor says there"
            )


@contextlib.contextmanager
def no_interrupt() -> Iterator[None]:
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not in the main thread, which gets the signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def open_to_all(scheduler: str | None) -> str:
    """Return a warning for a scheduler without TLS, else an empty string."""
    if scheduler is None or scheduler.startswith(("tls://", "wss://")):
        return ""
    return (
        f"{scheduler} is not TLS: everybody who reaches it, or this process, over the network runs code in both; "
        "docs/experiments.md shows how to start a cluster with certificates"
    )

"""Clusters of a sweep: local workers, or those of any Dask scheduler.

A client of a Dask scheduler or worker can run code in it. So local ones use TLS with a certificate that is made for one
sweep and kept in memory, and keep their files in a private folder.
"""

import contextlib
import logging
import multiprocessing
import signal
from collections.abc import Iterator, Mapping
from multiprocessing import resource_tracker
from tempfile import TemporaryDirectory

import dask
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster
from distributed.security import Security
from distributed.system import MEMORY_LIMIT

from bttlab.runs.stop import StopSignals
from bttlab.sweep.trials import CARD
from bttlab.sweep.worker import cards, identity
from bttlab.util.errors import BttlabError
from bttlab.util.plugins import missing_package
from bttlab.util.processes import SAFE_PATH, safe_path

WORKER_BYTES = 1_500_000_000  # that PyTorch, pynq and a corpus take of a worker's memory, with room to spare
LEAST_BYTES = 600_000_000  # that a worker takes of it at the least
CONNECT_SECONDS = 10
START_SECONDS = 120  # that workers may take to start on a busy machine
END_SECONDS = 10  # that they may take to end before they are killed
TLS = ("tls://", "wss://")  # addresses that ask for the certificate


class ClusterError(BttlabError):
    """Raised if a sweep cannot run on a cluster."""


@contextlib.contextmanager
def open_cluster(
    scheduler: str | None = None,
    workers: int | None = None,
    resources: Mapping[str, float] | None = None,
    credentials: Security | None = None,
) -> Iterator[Client]:
    """Connect to a scheduler, or start local workers that end with the context.

    Parameters
    ----------
    scheduler : str, optional
        Address of one, such as tcp://host:8786.
    workers : int, optional
        Processes to start here; by default as many as cores and memory allow.
    resources : mapping, optional
        What a trial takes. Workers that start here offer the cards of this machine, and nothing else.
    credentials : Security, optional
        For a scheduler, by default what Dask's own configuration says. Workers that start here get new ones.

    Raises
    ------
    ClusterError
        If the scheduler does not answer, workers here cannot offer what a trial takes, or do not start.
    """
    if scheduler is not None:
        if workers is not None:
            raise ClusterError(f"--workers {workers} is for workers on this machine; {scheduler} has its own")
        client = connect(scheduler, credentials=credentials)
        try:
            yield client
        finally:
            with contextlib.suppress(TimeoutError):
                client.close(END_SECONDS)
        return
    most = max(2, MEMORY_LIMIT // LEAST_BYTES)
    if workers is not None and not 1 <= workers <= most:
        rule = "give at least 1" if workers < 1 else f"the memory here has room for {most}; give at most {most}"
        raise ClusterError(f"--workers {workers}: {rule}")
    count = workers or most_workers()
    for resource, amount in (resources or {}).items():
        if resource != CARD or amount > 1:
            raise ClusterError(
                f"a trial takes {resource}={amount:g}, which no worker that starts here has; leave it out, or give "
                "--scheduler with the address of one whose workers offer it"
            )
    if CARD in (resources or {}):
        if not cards():
            raise ClusterError(
                f"a trial takes {CARD}=1, and PYNQ finds no card on this machine; take device: emulated, or "
                "--scheduler with the address of one whose workers have cards"
            )
        count = min(count, len(cards()))
    with _local(count, dict(resources or {})) as client:
        yield client


@contextlib.contextmanager
def _local(count: int, resources: dict[str, float]) -> Iterator[Client]:
    """Start local workers. Ctrl-C does not reach them: this process ends them."""
    before = set(multiprocessing.active_children())
    cluster = client = None
    # silence_logs ends with the cluster, and workers that hang break their connections after that.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with _private_files():
        try:
            with StopSignals() as signals:
                cluster = _scheduler(count, resources)
            if signals.received:
                signal.raise_signal(signals.received)
            client = Client(cluster)
            cluster.scale(count)
            try:
                client.wait_for_workers(count, timeout=START_SECONDS)
            except TimeoutError:
                raise ClusterError(
                    f"{count} workers did not start on this machine within {START_SECONDS} s; give fewer with --workers"
                ) from None
            yield client
        finally:
            with StopSignals():  # another Ctrl-C is not to leave any behind
                for one in filter(None, (client, cluster)):
                    with contextlib.suppress(TimeoutError):
                        one.close(END_SECONDS)
                for process in set(multiprocessing.active_children()) - before:
                    process.kill()
                    process.join()


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """Keep files and imports of the scheduler and its workers in a private folder.

    Dask's default, `dask-scratch-space` in the temporary folder, may be another user's, and is first in `sys.path`. The
    HTTP servers, on loopback and without certificates, serve nothing.
    """
    with TemporaryDirectory(prefix="bttlab-sweep-", ignore_cleanup_errors=True) as folder:
        values = {
            "temporary-directory": folder,
            "distributed.scheduler.http.routes": [],
            "distributed.worker.http.routes": [],
            f"distributed.nanny.pre-spawn-environ.{SAFE_PATH}": 1,
        }
        with dask.config.set(values):
            yield


def _scheduler(count: int, resources: dict[str, float]) -> LocalCluster:
    """Start a scheduler. Its threads block SIGINT, and the workers inherit that."""
    with safe_path():
        resource_tracker.ensure_running()  # in this thread: whichever does it unblocks SIGINT
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return LocalCluster(
            n_workers=0,
            threads_per_worker=1,
            processes=True,
            memory_limit=MEMORY_LIMIT // count,
            resources=resources,
            security=_new_credentials(),
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
            silence_logs="CRITICAL",
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _new_credentials() -> Security:
    """Make a key and a certificate in memory; both ends of a connection must show it."""
    try:
        return Security.temporary()
    except ImportError:
        missing = ModuleNotFoundError(name="cryptography")
        raise ClusterError(missing_package(missing, "a cluster on this machine") or str(missing)) from None


def most_workers() -> int:
    """Return how many workers this machine's cores and memory allow."""
    return max(1, min(CPU_COUNT, MEMORY_LIMIT // WORKER_BYTES))


def open_to_all(scheduler: str | None) -> str:
    """Return a warning for a scheduler without TLS, else an empty string."""
    if scheduler is None or scheduler.startswith(TLS):
        return ""
    return (
        f"{scheduler} is not TLS: everybody who reaches it, or this process, over the network runs code in both; "
        "docs/experiments.md shows how to start a cluster with certificates"
    )


def connect(address: str, seconds: float = CONNECT_SECONDS, credentials: Security | None = None) -> Client:
    """Connect to a scheduler; credentials are by default those of Dask's configuration. Raises ClusterError."""
    try:
        return Client(address, timeout=seconds, security=credentials)
    except (OSError, ValueError, TypeError, TimeoutError) as error:  # TypeError: TLS without a certificate
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ClusterError(
            f"no scheduler answers at {address} ({reason}); see whether it runs, and whether the certificate "
            "is its own (--tls-ca-file, --tls-cert, --tls-key); or leave --scheduler out to run on this machine"
        ) from None


def check_cluster(client: Client, resources: Mapping[str, float]) -> None:
    """Check that a cluster can run the trials, with the versions and sources of this process.

    Parameters
    ----------
    resources : mapping of str to float
        What a trial takes of its worker.

    Raises
    ------
    ClusterError
        In one line: no workers, several threads in one, other versions or sources than here, a resource nobody has, a
        card that is offered where there is none.
    """
    address = client.scheduler.address
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
    here = identity()
    answers = {name: client.submit(identity, workers=[name], pure=False) for name in workers}
    for name, answer in answers.items():
        there = answer.result()
        for what in here | there:
            if here.get(what) != there.get(what):
                raise ClusterError(
                    f"worker {name} has {what} {there.get(what, 'none')}, this process {here.get(what, 'none')}; give "
                    "both the same checkout and the same packages: results are to be equal to the bit"
                )
        offers = workers[name]["resources"].get(CARD)
        if offers and not client.submit(cards, workers=[name], pure=False).result():
            raise ClusterError(
                f"worker {name} offers {CARD}, and PYNQ finds no card on its machine; start it without --resources "
                f"{CARD}=1, or see what bttlab doctor says there"
            )

"""A network that goes and comes back, between a scheduler and a worker in network namespaces of their own.

The cluster is started as docs/experiments.md has it: with certificates, and a worker that is started again when it
ends.
"""

import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

import tiny_runs
from bttlab.experiments import read_run
from bttlab.experiments.keep import flat
from bttlab.sweep.cluster import _new_credentials
from bttlab.train import CheckpointStore, tensors_digest
from own_path import environment

pytestmark = pytest.mark.long

DOCS = Path(__file__).resolve().parents[1] / "docs" / "experiments.md"
HERE, THERE, PORT = "10.231.17.1", "10.231.17.2", 8786
EPOCHS = 60  # some seconds: the network goes in their midst


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def two_machines():
    """Two network namespaces with a cable between them: their names, and what plugs it in and out."""
    names = [f"bttlab-{os.getpid()}-{end}" for end in "ab"]
    made = []
    try:
        for name in names:
            _ip("netns", "add", name)
            made.append(name)
        _ip(
            "link", "add", "name", "left", "netns", names[0], "type", "veth", "peer", "name", "right", "netns", names[1]
        )
        for name, end, address in zip(names, ("left", "right"), (HERE, THERE), strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", end)
            for link in ("lo", end):
                _ip("-n", name, "link", "set", link, "up")
    except (OSError, subprocess.CalledProcessError):
        for name in made:
            _ip("netns", "delete", name)
        pytest.skip("network namespaces take root and iproute2")
    yield names, lambda state: _ip("-n", names[0], "link", "set", "left", state)
    for name in names:
        _ip("netns", "delete", name)


def test_a_sweep_outlives_a_minute_without_the_network(two_machines, tmp_path):
    (here, there), cable = two_machines
    tls = _certificates(tmp_path)
    corpus = tiny_runs.write_corpus(tmp_path / "corpus")
    fixed = {key: list(value) if isinstance(value, tuple) else value for key, value in _fixed(corpus).items()}
    spec = {"fixed": fixed | {"epochs": EPOCHS}, "vary": {"seed": [0, 1]}, "chunk_seconds": 0.5}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(spec))
    address = f"tls://{HERE}:{PORT}"
    scheduler = ["distributed.cli.dask_scheduler", "--host", address, "--no-dashboard", *tls]
    worker = ["distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard", *tls]
    worker += ["--local-directory", str(tmp_path), "--death-timeout", "10"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_running(_at(here, "-m", *scheduler), tmp_path))
        restarts = stack.enter_context(_restarted(_at(there, "-m", *worker), tmp_path))
        command = _at(here, "-m", "bttlab", "sweep", "tiny.yaml", "--scheduler", address, *tls)
        sweep = stack.enter_context(_running(command, tmp_path))
        lines = _Lines(sweep)
        lines.wait("running on 1 worker")
        cable("down")
        lines.wait(f"no workers at {address}; waiting for one")
        assert "left" not in lines.last
        first = restarts[0]
        _wait(lambda: first.poll() is not None)  # the worker gives up, too, and is started again
        cable("up")
        assert sweep.wait(600) == 0, lines.all
    assert len(restarts) > 1
    for seed in (0, 1):
        alone = tiny_runs.train(tmp_path / f"alone-{seed}", corpus, seed=seed, epochs=EPOCHS).parameters_sha256
        found = {
            read_run(path.parent).configuration["seed"]: path.parent for path in tmp_path.glob("runs/tiny/*/run.json")
        }
        assert tensors_digest(CheckpointStore(found[seed]).load()[0].parameters) == alone


def test_the_documented_unit_starts_such_a_worker_again():
    unit = DOCS.read_text(encoding="utf-8").partition("```ini\n")[2].partition("```")[0]
    lines = dict(line.split("=", 1) for line in unit.replace("\\\n", "").splitlines() if "=" in line)
    assert "DASK_TEMPORARY_DIRECTORY=%h/cluster" in lines["Environment"].split()
    assert lines["Restart"] == "always" and lines["WantedBy"] == "default.target"
    command = lines["ExecStart"].split()
    assert command[1:3] == ["worker", "tls://HOST:8786"] and "--no-dashboard" in command
    from distributed.cli.dask_worker import main

    known = {name for option in main.params for name in (*option.opts, *option.secondary_opts)}
    assert {part for part in command if part.startswith("--")} <= known


def test_the_documented_scheduler_keeps_and_tells_nothing_where_others_look(tmp_path):
    lines = re.findall(r"^    export (.*)$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    pairs = [pair.partition("=") for line in lines for pair in shlex.split(line)]
    variables = {name: value.replace("$HOME/cluster", str(tmp_path / "cluster")) for name, _, value in pairs}
    assert len(variables) == 3
    port = _free_port()
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "tls://127.0.0.1:0", "--no-dashboard"]
    command += ["--dashboard-address", f"127.0.0.1:{port}", *_certificates(tmp_path)]
    with _running(command, tmp_path, **variables):
        _wait(lambda: _status(port, "/") is not None)
        for page in ("/", "/status", "/info/main/workers.html", "/json/identity.json", "/health", "/metrics"):
            assert _status(port, page) == 404
        assert list((tmp_path / "cluster" / "dask-scratch-space").glob("scheduler-*"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _status(port: int, page: str) -> int | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def _fixed(corpus: Path) -> dict:
    return {key: value for key, value in flat(tiny_runs.settings(corpus)).items() if key != "seed"}


def _certificates(folder: Path) -> list[str]:
    credentials, options = _new_credentials(), []
    names = {"--tls-ca-file": "tls_ca_file", "--tls-cert": "tls_scheduler_cert", "--tls-key": "tls_scheduler_key"}
    for option, name in names.items():
        (folder / name).write_text(getattr(credentials, name))
        options += [option, str(folder / name)]
    return options


def _at(namespace: str, *arguments: str) -> list[str]:
    return [shutil.which("ip"), "netns", "exec", namespace, sys.executable, *arguments]


def _start(command: list[str], folder: Path, **more: str) -> subprocess.Popen:
    variables = environment(
        **more,
        DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP="12s",
        DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT="5s",
        BTTLAB_RUNS=str(folder / "index"),
    )
    return subprocess.Popen(command, cwd=folder, env=variables, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def _running(command: list[str], folder: Path, **variables: str):
    process = _start(command, folder, **variables)
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()


@contextlib.contextmanager
def _restarted(command: list[str], folder: Path):
    """Run a command again whenever it ends, as Restart=always does; the processes so far."""
    over, processes = threading.Event(), [_start(command, folder)]

    def follow() -> None:
        while not over.is_set():
            processes[-1].communicate()
            if not over.wait(1):
                processes.append(_start(command, folder))

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield processes
    finally:
        over.set()
        while thread.is_alive():
            processes[-1].terminate()
            thread.join(1)


class _Lines:
    """What a process says on stderr, as it comes."""

    def __init__(self, process: subprocess.Popen):
        self.all: list[str] = []
        self._thread = threading.Thread(target=lambda: self.all.extend(iter(process.stderr.readline, "")), daemon=True)
        self._thread.start()
        self._seen = 0

    @property
    def last(self) -> str:
        return self.all[self._seen - 1]

    def wait(self, text: str) -> None:
        """Wait for a line with a text, after those waited for so far."""
        deadline = time.monotonic() + 400
        while time.monotonic() < deadline:
            while self._seen < len(self.all):
                self._seen += 1
                if text in self.last:
                    return
            if not self._thread.is_alive():
                break
            time.sleep(0.05)
        pytest.fail(f"never said {text!r}: {self.all}")


def _wait(condition) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)

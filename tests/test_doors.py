"""The doors: who can reach JupyterLab, and what our code never does with a file."""

import ast
import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from conftest import ROOT

# Reading a file with one of these may run what is in it, or write where the file says.
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
CALLS = {"eval", "exec", "read_pickle", "unsafe_load", "extractall", "unpack_archive"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab as `make lab` starts it, on another port and with a configuration of its own; gives port and token."""
    folder = tmp_path_factory.mktemp("jupyter")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    commands = subprocess.run(
        ["make", "--no-print-directory", "-n", "lab", f"PORT={port}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    command = commands.stdout.splitlines()[-1]
    assert command.startswith(".venv/bin/jupyter lab ")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
    environment |= {f"JUPYTER_{name}_DIR": str(folder / name) for name in ("CONFIG", "RUNTIME", "DATA")}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*shlex.split(command), "--no-browser"], cwd=ROOT, env=environment, stdout=log, stderr=log
        )
    try:
        while not (found := list(folder.glob("RUNTIME/jpserver-*.json"))):
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.1)
        token = json.loads(found[0].read_text())["token"]
        while True:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield port, token
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def ask(port: int, path: str, **headers: str) -> tuple[int, str]:
    """Status and address of the page that a request ends at."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.url
    except urllib.error.HTTPError as error:
        return error.code, error.url


def test_the_lab_asks_for_its_token(lab):
    port, token = lab
    assert re.fullmatch(r"[0-9a-f]{32,}", token)
    for path in ("/api/contents", "/api/kernels", "/api/terminals"):
        assert ask(port, path)[0] == 403
        assert ask(port, path, Authorization="token " + "0" * len(token))[0] == 403
        assert ask(port, path, Authorization=f"token {token}")[0] == 200
    assert "/login?next=" in ask(port, "/lab")[1]
    # A page of another site, in the user's browser, has another host name in its requests.
    assert ask(port, "/api/contents", Authorization=f"token {token}", Host="example.org")[0] == 403


def test_the_lab_listens_on_loopback_alone(lab):
    port, _ = lab
    listening = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
            listening += [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]
    assert listening == [f"0100007F:{port:04X}"]  # 127.0.0.1


def code() -> list[tuple[str, str]]:
    """Every file of the package and code cell of the notebooks."""
    sources = [(str(path), path.read_text(encoding="utf-8")) for path in sorted((ROOT / "lib").rglob("*.py"))]
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        lines = [line for cell in cells if cell["cell_type"] == "code" for line in "".join(cell["source"]).split("\n")]
        sources.append((str(path), "\n".join(line for line in lines if not line.startswith(("%", "!")))))
    return sources


def faults(source: str) -> list[str]:
    """What a source has of that which may run or write what a file says."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [name for name in names if name.partition(".")[0] in MODULES]
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = (
            node.func.value.id if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) else ""
        )
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if (
            (name in CALLS and (name, bool(owner)) != ("eval", True))  # a module of torch has eval()
            or ((owner, name) == ("torch", "load") and options.get("weights_only") != "True")
            or (owner, name) in (("yaml", "load"), ("os", "system"), ("os", "popen"))
            or options.get("allow_pickle", "False") != "False"
            or options.get("shell", "False") != "False"
        ):
            found.append(ast.unparse(node))
    return found


def test_nothing_unpickles_or_executes_what_a_file_says():
    sources = code()
    assert len(sources) > 100
    assert {path: found for path, source in sources if (found := faults(source))} == {}


@pytest.mark.parametrize(
    "source",
    [
        *(
            "import pickle",
            "from joblib import load",
            "torch.load(f)",
            "numpy.load(f, allow_pickle=True)",
            "eval(text)",
        ),
        *("archive.extractall(folder)", "subprocess.run(text, shell=True)", "pandas.read_pickle(f)", "yaml.load(f)"),
    ],
)
def test_what_would_be_found(source):
    assert faults(source)

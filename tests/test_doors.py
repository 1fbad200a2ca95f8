"""The doors: who can reach JupyterLab."""

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
import types
import urllib.request
from pathlib import Path

import psutil
import pytest
from jupyter_client.manager import KernelManager

from fake_trainer import until
from processes import ask
from two_users import run_as_nobody

from conftest import ROOT

pytestmark = pytest.mark.long


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
    assert " .venv/bin/jupyter lab " in command
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
    environment |= {f"JUPYTER_{name}_DIR": str(folder / name) for name in ("CONFIG", "DATA")}
    runtime = Path(tempfile.mkdtemp())  # a short name, which leaves room for the names of sockets
    runtime.chmod(0o777)
    environment["JUPYTER_RUNTIME_DIR"] = str(runtime)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            ["sh", "-c", f"exec env {command} --no-browser"], cwd=ROOT, env=environment, stdout=log, stderr=log, umask=0
        )
    try:
        while not (found := [path for path in runtime.glob("jpserver-*.json") if path.stat().st_size]):  # written whole
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.1)
        token = json.loads(found[0].read_text())["token"]
        while True:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield types.SimpleNamespace(port=port, token=token, runtime=runtime, process=process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        shutil.rmtree(runtime)


CONNECT = """
import socket, sys
for path in sys.argv[1:]:
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        print("in", path)
    except PermissionError:
        print("out")
"""


def test_neither_token_nor_sockets_of_kernels_are_for_others(lab, two_users):
    """Whatever the umask; and what a kernel says, which at a TCP port every user of the machine could read."""
    url = f"http://127.0.0.1:{lab.port}/api/kernels"
    request = urllib.request.Request(url, b"{}", {"Authorization": f"token {lab.token}"}, method="POST")
    with urllib.request.urlopen(request) as response:
        identity = json.loads(response.read())["id"]
    assert until(lambda: len(list(lab.runtime.glob(f"kernel-{identity}-ipc-*"))) == 5)
    sockets = lab.runtime.glob(f"kernel-{identity}-ipc-*")
    assert stat.S_IMODE(lab.runtime.stat().st_mode) & 0o777 == 0o700
    for path in (*lab.runtime.glob("jpserver-*.json"), lab.runtime / f"kernel-{identity}.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(run_as_nobody(CONNECT, *sockets).split()) == {"out"}
    server = psutil.Process(lab.process.pid)
    processes = (server, *server.children(recursive=True))
    commands = ask(processes, lambda process: " ".join(process.cmdline()))
    assert any("ipykernel" in command for command in commands.values())
    assert not [command for command in commands.values() if lab.token in command]
    connections = ask(processes, lambda process: process.net_connections())
    assert server in connections
    for process, found in connections.items():
        listening = [one.laddr for one in found if one.status == psutil.CONN_LISTEN]
        assert all(address.ip == "127.0.0.1" for address in listening)
        # A kernel keeps one, for what its own children print: it takes nothing without a word that it gives them.
        assert process == server or len(listening) <= 1


ASK = """
import contextlib, json, socket, sys
request = {"seq": 1, "type": "request", "command": "initialize", "arguments": {"adapterID": ""}}
body = json.dumps(request).encode()
for port in sys.argv[1:]:
    with contextlib.suppress(OSError):  # a port of another program that has begun meanwhile
        connection = socket.create_connection(("127.0.0.1", port), 10)
        connection.sendall(b"Content-Length: %d\\r\\n\\r\\n%s" % (len(body), body))
        print(connection.recv(1 << 16).decode(errors="replace"))
"""


def test_what_is_open_in_a_notebook(two_users, tmp_path):
    """A kernel imports what is beside its notebook; its debugger, once it is on, answers every user."""

    def listening():
        return {one.laddr.port for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN}

    (tmp_path / "seqeval.py").write_text("open('ran', 'w').close()")
    with tempfile.TemporaryDirectory() as runtime:
        manager = KernelManager(transport="ipc", connection_file=f"{runtime}/kernel.json")
        manager.start_kernel(cwd=str(tmp_path))
        client = manager.blocking_client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=120)
            client.execute("import seqeval", reply=True, timeout=120)
            assert (tmp_path / "ran").exists()
            before = listening()
            request = {"type": "request", "seq": 1, "command": "initialize", "arguments": {}}
            client.control_channel.send(client.session.msg("debug_request", request))
            client.control_channel.get_msg(timeout=120)
            assert "Content-Length: " in run_as_nobody(ASK, *(listening() - before))
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)

"""Other users of the machine that a sweep runs on: none of them gets in."""

import importlib.util
import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
import yaml
from distributed import LocalCluster

from bttlab.cli import main
from bttlab.sweep import open_cluster
from bttlab.sweep.cluster import open_to_all
from bttlab.sweep.spec import spec_of
from bttlab.sweep.view import SweepView
from two_users import environment, run_as_nobody

pytestmark = pytest.mark.long

STRANGER = """
import asyncio, sys
from distributed import Client
from distributed.core import connect
from distributed.security import Security

async def ask(address, security):
    comm = await connect(address, timeout=2, **security.get_connection_args("client"))
    await comm.write({"op": "identity", "reply": True})
    return await comm.read()

for security in (Security(), Security.temporary()):
    for address in sys.argv[1:]:
        for place in (address, address.replace("tls:", "tcp:")):
            try:
                print("in:", place, asyncio.run(asyncio.wait_for(ask(place, security), 10)))
            except Exception as error:
                print("out:", place, type(error).__name__)
try:
    Client(sys.argv[1], timeout=2)
    print("in: a client")
except Exception as error:
    print("out:", type(error).__name__)
"""
PAGES = ("/", "/status", "/info/main/workers.html", "/json/identity.json", "/metrics", "/health")


@pytest.fixture(scope="module")
def client():
    with open_cluster(workers=1) as client:
        yield client


def _listening():
    process = psutil.Process()
    return {
        (connection.laddr.ip, connection.laddr.port)
        for one in (process, *process.children(recursive=True))
        for connection in one.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }


def test_a_stranger_is_refused_by_the_scheduler_the_worker_and_its_nanny(client):
    [(worker, known)] = client.scheduler_info()["workers"].items()
    assert client.run_on_scheduler(os.getuid) == os.getuid()  # with the certificate it answers
    said = run_as_nobody(STRANGER, client.scheduler.address, worker, known["nanny"]).splitlines()
    assert len(said) == 2 * 3 * 2 + 1 and {line.partition(":")[0] for line in said} == {"out"}, said


def test_every_socket_listens_on_loopback_and_tells_nothing_without_a_certificate():
    before = _listening()  # servers of other tests, which live as long as this process
    with open_cluster(workers=1):
        listening = _listening() - before
        assert len(listening) >= 3  # scheduler, nanny, worker
        for host, port in listening:
            assert host in ("127.0.0.1", "::1")
            for page in PAGES:
                answer = _get(port, page)
                assert answer == b"" or b" 404 " in answer.splitlines()[0], (port, page, answer)


def _get(port: int, page: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(f"GET {page} HTTP/1.0\r\n\r\n".encode())
        try:
            return connection.recv(4096)
        except ConnectionResetError:
            return b""


def test_nothing_is_imported_from_a_folder_that_others_write(tmp_path, monkeypatch):
    planted = tmp_path / "dask-scratch-space"
    planted.mkdir()
    planted.chmod(0o777)
    (planted / "bttlab_planted.py").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with open_cluster(workers=1) as client:
        assert importlib.util.find_spec("bttlab_planted") is None
        [there] = client.run(_found, "bttlab_planted").values()
        assert there is None
        own = [Path(folder) for folder in sys.path if folder.startswith(str(tmp_path))]
        for folder in own:
            private = [parent for parent in (folder, *folder.parents) if parent.parent == tmp_path]
            assert stat.S_IMODE(private[0].stat().st_mode) == 0o700
        assert own
    assert {path.name for path in tmp_path.iterdir()} == {"dask-scratch-space"}


def _found(name):
    return importlib.util.find_spec(name)


def test_a_sweep_started_in_a_hostile_folder(tmp_path):
    """As the command does: its own folder, not this one, is where it imports from; so do the processes it starts."""
    for planted in ("multiprocessing", "distributed"):
        (tmp_path / f"{planted}.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"kind": "estimate", "vary": {"clock_mhz": [100]}}))
    command = tmp_path / "bin" / "bttlab"
    command.parent.mkdir()
    command.write_text("from bttlab.cli import main\nif __name__ == '__main__':\n    raise SystemExit(main())\n")
    done = subprocess.run(
        [sys.executable, str(command), "sweep", "sweep.yaml", "--workers", "1"],
        cwd=tmp_path,
        env=environment(BTTLAB_RUNS=str(tmp_path / "index"), HOME=str(tmp_path)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "run").exists()


# --- clusters of the user


def test_what_is_said_of_a_cluster_without_tls(tmp_path, capsys):
    assert open_to_all(None) == open_to_all("tls://host:8786") == ""
    (tmp_path / "sweep.yaml").write_text("vary: {seed: [0]}")
    open_one = {"n_workers": 0, "processes": False, "protocol": "tcp", "host": "127.0.0.1", "dashboard_address": None}
    with LocalCluster(**open_one) as cluster:
        for address in (cluster.scheduler_address, cluster.scheduler_address.removeprefix("tcp://")):
            assert main(["sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path), "--scheduler", address]) == 2
            warning, error = capsys.readouterr().err.strip().splitlines()
            assert f"warning: {address} is not TLS" in warning and "has no workers" in error
    spec = spec_of({"kind": "estimate", "vary": {"clock_mhz": [100]}}, "view")
    view = SweepView(spec, tmp_path / "sweep", scheduler="tcp://<b>:1")
    assert "tcp://&lt;b&gt;:1 is not TLS" in view.widget.children[-1].value
    plain = SweepView(spec, tmp_path / "sweep").widget
    assert len(plain.children) == len(view.widget.children) - 1
    assert not any("TLS" in getattr(part, "value", "") for part in plain.children)


def test_a_cluster_with_certificates_in_files(client, tmp_path, capsys):
    names = {"tls_ca_file": "ca.pem", "tls_client_cert": "cert.pem", "tls_client_key": "key.pem"}
    for attribute, name in names.items():
        (tmp_path / name).write_text(getattr(client.security, attribute))
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"kind": "estimate", "vary": {"clock_mhz": [100]}}))
    sweep = ["sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "out")]
    sweep += ["--scheduler", client.scheduler.address]
    options = {"--tls-ca-file": "ca.pem", "--tls-cert": "cert.pem", "--tls-key": "key.pem"}
    given = [part for option, name in options.items() for part in (option, str(tmp_path / name))]
    assert main([*sweep, *given]) == 0
    assert "warning" not in capsys.readouterr().err
    for wrong, message in (
        (given[:4], "go together"),
        ([*given[:5], str(tmp_path / "none")], "No such file"),
        ([], "no scheduler answers"),
    ):
        assert main([*sweep, *wrong]) == 2
        error = capsys.readouterr().err.strip()
        assert message in error and len(error.splitlines()) == 1
    assert main(["sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "out"), *given]) == 2
    assert "are for --scheduler" in capsys.readouterr().err

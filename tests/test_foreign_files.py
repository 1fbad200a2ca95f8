"""Files from elsewhere: of any kind, size or depth they are read or refused in one line, in little memory."""

import ctypes
import json
import os
import shutil
import signal
import threading
import tracemalloc
from contextlib import contextmanager
from dataclasses import asdict

import pytest
from pynq._3rdparty import xclbin as axlf
from rich.table import Table

import tiny_runs
from bttlab.card import EmulatedU50, load_overlay
from bttlab.card.kernel import OverlayError
from bttlab.card.manifest import read_manifest
from bttlab.card.xclbin import FIRST_SECTION, SECTIONS, SW_EMU, read_container
from bttlab.cli import main
from bttlab.compiler.module_file import load_module
from bttlab.runs import CheckpointStore, checkpoint, read_run
from bttlab.runs.checkpoint import CheckpointError, DamagedCheckpoint, read_checkpoint
from bttlab.runs.metrics import METRICS_FILE, MOST_OF_LINE, read_curves, read_lines
from bttlab.runs.record import MOST_KEYS, RUN_FILE
from bttlab.runs.sweep import read_spec
from bttlab.util import locks
from bttlab.util.errors import BttlabError
from bttlab.util.files import cut_torn_line
from bttlab.util.reading import parse_json, read_text, read_toml
from bttlab.util.terminal import printable, result, say
from bttlab_cost.configuration import CostError
from bttlab_cost.estimate import read_prices
from bttlab_cost.hub import read_config
from bttlab_methods.record import Results
from command_line import refused, run_json
from two_users import run_as_nobody, shared_folder

MB = 1_000_000


@pytest.fixture(autouse=True)
def not_for_ever():
    """End a test that waits for a pipe."""

    def too_long(number, frame):
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@contextmanager
def memory(most: int):
    """Check that at most this many bytes are allocated at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


@pytest.fixture
def run(tmp_path, corpus, monkeypatch):
    """The folder of a run, in the only folder of runs."""
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    tiny_runs.train(tmp_path / "runs" / "run", corpus, epochs=1)
    return tmp_path / "runs" / "run"


# --- pipes, devices, folders

PIPE = "it is a pipe or a device, not a regular file"
READERS = {
    "settings": (read_toml, BttlabError),
    "sweep": (read_spec, BttlabError),
    "module": (lambda path: load_module(f"{path}:Net"), BttlabError),
    "checkpoint": (read_checkpoint, DamagedCheckpoint),
    "config.json": (read_config, CostError),
    "prices": (read_prices, CostError),
    "methods": (Results.read, BttlabError),
    "overlay": (load_overlay, OverlayError),
    "optuna.log": (cut_torn_line, OSError),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_is_not_waited_for(tmp_path, reader):
    read, error = READERS[reader]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(error, match=PIPE if reader != "optuna.log" else "it is not a regular file"):
        read(tmp_path / "pipe")


def test_a_pipe_in_a_runs_folder_hides_no_other_run(run, capsys):
    other = shutil.copytree(run, run.with_name("other"))
    for name in (RUN_FILE, METRICS_FILE):
        (other / name).unlink()
        os.mkfifo(other / name)
    assert main(["runs", "list"]) == 0
    out, err = capsys.readouterr()
    assert " run " in out and f"other/run.json cannot be read ({PIPE})" in err
    assert "no run" in refused(capsys, "runs", "show", str(other))
    (other / RUN_FILE).unlink()
    shutil.copy(run / RUN_FILE, other)
    assert main(["runs", "show", str(other)]) == 0
    assert f"{METRICS_FILE} is left out: {PIPE}" in capsys.readouterr().err
    assert f"{METRICS_FILE} cannot be read or written ({PIPE})" in refused(capsys, "train", "--resume", str(other))
    manifest = run.with_name("overlays") / "manifest.json"
    manifest.parent.mkdir()
    os.mkfifo(manifest)
    with pytest.raises(OverlayError, match=PIPE):
        read_manifest(manifest.parent)


def test_a_corpus_of_pipes(tmp_path, corpus, capsys):
    copy = shutil.copytree(corpus, tmp_path / "copy")
    (copy / "train" / "seq.in").unlink()
    os.mkfifo(copy / "train" / "seq.in")
    assert f"seq.in cannot be read ({PIPE})" in refused(
        capsys, "train", "--data", str(copy), "--out", str(tmp_path / "r")
    )
    os.mkfifo(tmp_path / "rows.csv")
    assert PIPE in refused(capsys, "data", "import", str(tmp_path / "rows.csv"), str(tmp_path / "made"))


def test_sentences_come_through_a_pipe_that_the_user_names(tmp_path):
    read, write = os.pipe()
    writer = threading.Thread(target=lambda: (os.write(write, b"to a x\n"), os.close(write)))
    writer.start()
    assert read_text(f"/proc/self/fd/{read}", pipes=True) == "to a x\n"
    writer.join()
    os.close(read)


# --- size


def sparse(path, size):
    with open(path, "wb") as file:
        file.truncate(size)
    return path


def test_a_file_with_holes_takes_no_memory(tmp_path, run):
    with memory(8 * MB):
        lines, faults = read_lines(sparse(tmp_path / METRICS_FILE, 900 * MB))
    assert lines == [] and faults == [
        f"{METRICS_FILE} is left out from line 1 on: it is longer than {MOST_OF_LINE:,} bytes"
    ]
    with memory(MB), pytest.raises(OSError, match=r"it has 2,000.0 MB, and such a file has at most 1,000 MB"):
        read_lines(sparse(tmp_path / METRICS_FILE, 2000 * MB))
    for read, error in (
        READERS[name] for name in ("settings", "sweep", "module", "checkpoint", "config.json", "prices")
    ):
        with memory(8 * MB), pytest.raises(error, match=r"it has 900.0 MB|Expecting value|the file has 900,000,000"):
            read(sparse(tmp_path / "large", 900 * MB))
    sparse(run / RUN_FILE, 900 * MB)
    with memory(8 * MB), pytest.raises(BttlabError, match=r"run.json cannot be read \(it has 900.0 MB, and such"):
        read_run(run)


def test_metrics_before_a_line_that_is_too_long_are_read(run):
    whole = len(read_curves(run).losses)
    with (run / METRICS_FILE).open("ab") as file:
        file.write(b"x" * MOST_OF_LINE + b'\n{"event": "test"}\n')
    curves = read_curves(run)
    assert len(curves.losses) == whole > 0 and "is left out from line 3 on" in curves.faults[0]


def test_a_record_of_very_many_keys_is_left_out(run, capsys):
    values = json.loads((run / RUN_FILE).read_text())
    for key, inside in (("configuration", 1), ("figures", {"value": 1.0, "unit": "1", "provenance": "measured"})):
        other = run.with_name(key)
        other.mkdir()
        (other / RUN_FILE).write_text(json.dumps(values | {key: {f"k{n}": inside for n in range(50_000)}}))
        with pytest.raises(BttlabError, match=f"no record of a run .{key} is .* at most {MOST_KEYS} items"):
            read_run(other)
    assert len(run_json(capsys, "runs", "list")["runs"]) == 1


# --- depth

DEEP = "[" * 200_000 + "]" * 200_000


def test_settings_that_are_nested_too_deeply(tmp_path):
    path = tmp_path / "file"
    path.write_text("a." * 16 + "a = 1\n")
    with memory(2 * MB), pytest.raises(BttlabError, match="file has a key of more than 16 parts"):
        read_toml(path)
    path.write_text(f"a = {DEEP}\n")
    with pytest.raises(BttlabError, match="file is no TOML"):
        read_toml(path)
    path.write_text('a.b."c.d" = [0.1, 0.2]\n[x.y]\nz = "a.b.c.d.e.f.g.h.i.j.k.l.m"\n')
    assert read_toml(path) == {"a": {"b": {"c.d": [0.1, 0.2]}}, "x": {"y": {"z": "a.b.c.d.e.f.g.h.i.j.k.l.m"}}}
    for text in (DEEP, f'{{"format": 1, "name": {DEEP}}}'):
        with pytest.raises(ValueError, match=r"nested too deeply|recursion"):
            parse_json(text)


def aliases(form: str) -> str:
    """Five levels, each of ten aliases of the level before."""
    lines = ["l0: &l0 {x: 1}"]
    for n in range(5):
        below = ", ".join([f"*l{n}"] * 10)
        lines.append(f"l{n + 1}: &l{n + 1} " + form % below)
    return "\n".join(lines)


@pytest.mark.parametrize("form", ["[%s]", "{<<: [%s]}"])
def test_aliases_of_aliases(tmp_path, form):
    """Also those of merged keys, which the reader writes out."""
    path = tmp_path / "sweep.yaml"
    path.write_text(aliases(form))
    with (
        memory(8 * MB),
        pytest.raises(BttlabError, match="with its aliases written out it has more than 100,000 values"),
    ):
        read_spec(path)
    path.write_text("vary: &a\n  seed: *a\n")
    with pytest.raises(BttlabError, match="line 1 has an alias of itself"):
        read_spec(path)
    path.write_text("vary: {seed: &s [0, 1], linear_rank: *s}\nkind: estimate\n")
    assert read_spec(path).vary["linear_rank"] == [0, 1]


def test_a_record_that_is_nested_too_deeply(run, capsys):
    (run / RUN_FILE).write_text(f'{{"format": 1, "configuration": {DEEP}}}')
    assert "run.json is no record of a run (it is nested too deeply)" in refused(capsys, "runs", "show", str(run))
    (run.parent / "manifest.json").write_text(f'{{"overlays": {DEEP}}}')
    with pytest.raises(OverlayError, match=r"not a valid manifest .*nested too deeply"):
        read_manifest(run.parent)
    (run.parent / "config.json").write_text(DEEP)
    with pytest.raises(CostError, match=r"config.json is not valid JSON .*nested too deeply"):
        read_config(run.parent / "config.json")


# --- checkpoints


@pytest.fixture
def forged(run, monkeypatch):
    """Write a checkpoint whose digest is right, with another header."""

    def forged(change):
        sound = CheckpointStore(run).load()[0]
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "asdict", lambda header: change(asdict(header)))
            data = checkpoint.pack(sound)
        for path in run.glob("*.safetensors"):
            path.write_bytes(data)

    return forged


def with_corpus(**values):
    return lambda header: header | {"corpus": header["corpus"] | values}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_corpus(slot_labels=["O", "B-city"]), "slot_labels begin with"),
        (with_corpus(slot_labels=["PAD", "B-city"]), "slot_labels lack O"),
        (with_corpus(intent_labels=[]), "intent_labels begin with"),
        (with_corpus(intent_labels=["a", "a"]), "intent_labels have an entry twice"),
        (with_corpus(vocabulary=["fly"]), "vocabulary begin with"),
        (lambda header: header | {"settings": {}}, "is missing"),
        (lambda header: [header], "no checkpoint of a run"),
    ],
)
def test_a_forged_checkpoint_is_one_line(forged, run, capsys, change, said):
    forged(change)
    assert said in refused(capsys, "predict", "to a x", "--run", str(run), "--device", "reference")


def test_a_checkpoint_that_is_nested_too_deeply_or_says_another_size(run, capsys, monkeypatch):
    path = run / "checkpoint.safetensors"
    sound = path.read_bytes()
    for header in (f'{{"__metadata__": {DEEP}}}', '{"x": {"data_offsets": [0, 900000000]}}', "[]", '{"x": 1}'):
        path.write_bytes(len(header).to_bytes(8, "little") + header.encode())
        with memory(20 * MB), pytest.raises(DamagedCheckpoint, match="cannot be read as a checkpoint"):
            read_checkpoint(path)
    path.write_bytes(sound)
    assert read_checkpoint(path).epochs_done == 1
    whole = CheckpointStore(run).load()[0]
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.json, "dumps", lambda values, **options: DEEP)
        data = checkpoint.pack(whole)
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="nested too deeply"):
        read_checkpoint(path)


# --- overlays


def test_sections_of_an_overlay_that_overlap(tmp_path, monkeypatch):
    """A table of many rows, each of which is all of the file; and of many kinds."""
    row = axlf.axlf_section_header
    count, size = 2500, 240_000
    top = axlf.axlf()
    top.m_magic, top.m_header.m_length, top.m_header.m_numSections, top.m_header.m_mode = (
        b"xclbin2",
        size,
        count,
        SW_EMU,
    )
    rows = b"".join(bytes(row(kind, b"x", 0, size)) for kind in range(count))
    data = (bytes(top)[:FIRST_SECTION] + rows).ljust(size, b"\0")
    assert len(data) == size == ctypes.sizeof(ctypes.create_string_buffer(size))
    with memory(10 * size):
        assert len(read_container(data).sections) <= len(SECTIONS) + 1
    path = tmp_path / "overlapping.xclbin"
    path.write_bytes(data)
    monkeypatch.setattr(EmulatedU50, "_trusted", set())
    with memory(20 * size), pytest.raises(OverlayError, match=r"overlapping.xclbin"):
        load_overlay(path, "emulated")


# --- the terminal

HOSTILE = "run\x1b]0;title\x07\x1b[2J\x9b31m\u202eabc\r\x7f"
SHOWN = r"run\u001b]0;title\u0007\u001b[2J\u009b31m\u202eabc\u000d\u007f"


def test_a_terminal_obeys_no_text(capsys, monkeypatch):
    assert printable(HOSTILE) == SHOWN and printable("é\t-\n\N{SNOWMAN}") == "é\t-\n\N{SNOWMAN}"
    say(HOSTILE)
    result(HOSTILE)
    assert capsys.readouterr() == (f"{SHOWN}\n", f"{SHOWN}\n")
    table = Table(box=None)
    table.add_row(HOSTILE, "\x1b]52;c;AAAA\x07", style="red")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    result(table)
    out = capsys.readouterr().out
    assert (
        r"\u001b]52;c;AAAA" in out and "\x1b]" not in out and "\x9b" not in out and "\x1b[31m" in out
    )  # its own style


def test_names_of_a_strangers_run_are_shown_as_text(run, capsys):
    values = json.loads((run / RUN_FILE).read_text())
    values |= {"name": HOSTILE, "configuration": values["configuration"] | {"data": HOSTILE}}
    (run / RUN_FILE).write_text(json.dumps(values))
    shutil.copytree(run, run.with_name("other"))
    for command in (("list",), ("show", str(run)), ("compare",)):
        main(["runs", *command])
        printed = "".join(capsys.readouterr())
        assert not {"\x1b", "\x07", "\x9b", "\u202e", "\r"} & set(printed) and r"\u001b]0;title" in printed
    listed = run_json(capsys, "runs", "list")["runs"]  # JSON has the name as it is
    assert {row["name"] for row in listed} == {HOSTILE}


FORGED = "run\nstatus      complete\n\tlast"
FLAT = r"run\u000astatus      complete\u000a\u0009last"


def test_a_name_with_lines_of_its_own_forges_no_line(run, capsys):
    """Whatever is printed of it, one line has all of it: a row of a table, a fact, a figure."""
    values = json.loads((run / RUN_FILE).read_text())
    values |= {"name": FORGED, "status": "failed", "error": FORGED, "configuration": {"data": FORGED, "seed": 0}}
    values |= {"figures": {FORGED: {"value": 1.0, "unit": FORGED, "provenance": "measured", "how": FORGED}}}
    (run / RUN_FILE).write_text(json.dumps(values))
    shutil.copytree(run, run.with_name("other"))
    (run / METRICS_FILE).write_text("no line of metrics\n")
    for command in (("list",), ("show", str(run)), ("compare",)):
        main(["runs", *command])
        printed = "".join(capsys.readouterr())
        assert FLAT in printed and "\t" not in printed
        assert not any(line.startswith(("status      complete", "last")) for line in printed.splitlines())


def test_labels_with_lines_of_their_own_forge_no_line(forged, run, capsys):
    forged(with_corpus(intent_labels=[FORGED, FORGED + "2", FORGED + "3"]))
    assert main(["predict", "to a x", "--run", str(run), "--device", "reference"]) == 0
    printed = capsys.readouterr().out
    assert FLAT in printed and not any(line.startswith("status") for line in printed.splitlines())


def test_labels_of_a_strangers_checkpoint_are_shown_as_text(forged, run, capsys):
    forged(with_corpus(intent_labels=[HOSTILE, HOSTILE + "2", HOSTILE + "3"]))
    assert main(["predict", "to a x", "--run", str(run), "--device", "reference"]) == 0
    printed = "".join(capsys.readouterr())
    assert r"\u001b]0;title" in printed and "\x1b" not in printed


# --- locks

HOLD = """
import fcntl, os, sys
folder = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(folder, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.mark.long
def test_a_reader_of_a_folder_cannot_keep_others_from_changing_it(two_users, monkeypatch):
    monkeypatch.setattr(locks, "CHANGE_SECONDS", 1.0)
    from two_users import start_as_nobody

    with shared_folder(0o755) as folder:
        holder = start_as_nobody(HOLD, folder)
        try:
            assert holder.stdout.readline() == "held\n"
            with locks.changing(folder):
                pass
            lock = folder / locks.CHANGE_FILE
            assert lock.stat().st_mode & 0o777 == 0o600
            assert run_as_nobody("import os, sys; print(os.access(sys.argv[1], os.R_OK))", lock) == "False"
        finally:
            holder.kill()
            holder.communicate()

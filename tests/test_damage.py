"""Damaged and hostile records: refused, or left out and named; never other values, a traceback or gigabytes."""

import json
import random
import shutil
import sqlite3
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny_runs
from bttlab.card import OverlayError
from bttlab.card.manifest import overlays_folder, read_manifest
from bttlab.cli import main
from bttlab.runs import RunIndex, read_run
from bttlab.runs.curves import METRICS, metrics_faults, parse_metrics, read_metrics
from bttlab.runs.record import RUN_FILE, RecordError
from bttlab.sweep import SpecError, SweepSpec, read_spec
from bttlab.util.json_files import CHECKSUM, JsonError, check_tree, load_json, with_checksum, without_checksum

SPEC = b"""name: tiny
search: random
trials: 4
vary:
  learning_rate: {low: 0.001, high: 0.1, log: true}
  seed: [0, 1, 2]
fixed: {encoders: 2, data: airline, "schedule.decay": linear}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage")
    tiny_runs.train(folder / "run", tiny_runs.write_corpus(folder / "corpus"))
    return folder / "run"


def damaged(data: bytes) -> list[bytes]:
    """50 truncations and 50 single flipped bits."""
    draw = random.Random(7)
    found = [data[: draw.randrange(len(data) - 1)] for _ in range(50)]
    for _ in range(50):
        flipped = bytearray(data)
        flipped[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        found.append(bytes(flipped))
    return found


def test_a_damaged_record_or_manifest_is_refused(run, tmp_path):
    for path, read, error, message in (
        (run / RUN_FILE, read_run, RecordError, "no record of a run"),
        (overlays_folder() / "manifest.json", read_manifest, OverlayError, "is not a valid manifest"),
    ):
        for data in damaged(path.read_bytes()):
            (tmp_path / path.name).write_bytes(data)
            with pytest.raises(error, match=message):
                read(tmp_path)


def test_damaged_lines_of_metrics_are_left_out_and_named(run):
    whole = (run / METRICS).read_bytes()
    lines, faults = parse_metrics(whole)
    assert faults == [] and lines == read_metrics(run) and len(lines) == 4
    for data in damaged(whole):
        found, faults = parse_metrics(data)
        assert all(line in lines for line in found)
        assert faults or (whole.startswith(data) and data[-1:] in (b"", b"\n", b"}"))  # cut between two lines


def test_a_file_of_metrics_cut_between_two_lines_is_named(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "cut")
    assert main(["runs", "show", str(tmp_path / "cut")]) == 0
    assert "lines are missing" not in capsys.readouterr().err
    whole = (run / METRICS).read_text().splitlines(keepends=True)
    for kept in range(len(whole)):
        (tmp_path / "cut" / METRICS).write_text("".join(whole[:kept]))
        assert main(["runs", "show", str(tmp_path / "cut")]) == 0
        assert "lines are missing" in capsys.readouterr().err


def test_records_without_checksums_load_and_say_so(run, tmp_path, capsys):
    old = json.loads((run / RUN_FILE).read_text())
    old.pop(CHECKSUM)
    (tmp_path / RUN_FILE).write_text(json.dumps(old))
    lines = read_metrics(run)
    (tmp_path / METRICS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert read_run(tmp_path) == read_run(run) and read_metrics(tmp_path) == lines
    assert metrics_faults(tmp_path) == ["4 lines of metrics.jsonl have no checksum: an older bttlab wrote them"]
    assert main(["runs", "show", str(tmp_path)]) == 0
    assert "4 lines of metrics.jsonl have no checksum" in capsys.readouterr().err


def test_a_change_by_hand_is_refused_with_the_way_out(run, tmp_path):
    values = json.loads((run / RUN_FILE).read_text()) | {"name": "another"}
    (tmp_path / RUN_FILE).write_text(json.dumps(values))
    with pytest.raises(RecordError, match="to keep a change made by hand, delete its 'sha256'"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    "text, message",
    [
        (b"[" + b"[]," * 10**6 + b"[]]", "values, more than 200,000"),
        (b"[" * 100 + b"]" * 100, "more than 32 inside one another"),
        (b"[" * 10**5 + b"]" * 10**5, "is no JSON|more than 32"),
        (rb'{"optimizer": "\ud800"}', "a lone surrogate"),
        (b'{"a": 1' + b"0" * 60 + b"}", "an integer has 200 bits"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "is no JSON"),
        (b'"\xff"', "is no JSON"),
    ],
)
def test_json_beyond_the_bounds_is_refused(text, message):
    tracemalloc.start()
    with pytest.raises(JsonError, match=message):
        load_json(text)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(values=st.dictionaries(st.text(max_size=3), VALUES, max_size=3))
def test_checksums_survive_a_file(values):
    try:
        check_tree(values)
    except JsonError:
        return
    values.pop(CHECKSUM, None)
    assert without_checksum(with_checksum(values)) == (values, True)


@given(data=st.data())
def test_a_forged_record_is_refused_or_can_be_shown(run, tmp_path_factory, data):
    """What passes the reader passes the index, the table and `runs show`, too."""
    folder = tmp_path_factory.mktemp("forged")
    values, _ = without_checksum(json.loads((run / RUN_FILE).read_text()))
    target = values
    while True:
        key = data.draw(st.sampled_from(sorted(target)))
        if not isinstance(target[key], dict) or not target[key] or data.draw(st.booleans()):
            break
        target = target[key]
    target[key] = data.draw(VALUES)
    (folder / RUN_FILE).write_text(json.dumps(values))
    index = RunIndex(folder / "index")
    count, faults = index.rebuild([folder])
    assert count + len(faults) == 1
    assert main(["runs", "show", str(folder)]) == (0 if count else 2)
    assert len(index.find()) == len(index.rows(["id", "name"])) == count


def test_a_figure_that_is_no_number_is_shown(run, tmp_path, capsys):
    values, _ = without_checksum(json.loads((run / RUN_FILE).read_text()))
    values["figures"]["loss"]["value"] = [1, "x"]
    (tmp_path / RUN_FILE).write_text(json.dumps(values))
    assert main(["runs", "show", str(tmp_path)]) == 0
    assert "loss, [1, 'x']: lines are missing" in capsys.readouterr().err


def test_one_bad_row_hides_no_other(run, tmp_path, monkeypatch, capsys):
    """Rows as an older version put them in: a lone surrogate, and a record that is none."""
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path / "index"))
    index, record = RunIndex(), read_run(run)
    for number in range(4):
        index.add(record, tmp_path / str(number))  # copies of one id stay four runs
    database = sqlite3.connect(index.path)
    for number, bad in enumerate((record.to_json().replace('"sgd"', r'"\ud800"'), '{"configuration": 3}', "{")):
        database.execute("UPDATE runs SET record = ? WHERE folder = ?", [bad, str(tmp_path / str(number))])
    database.commit()
    database.close()
    assert [run.folder.name for run in index.find()] == ["3"]
    assert len(index.faults) == 3 and all("is left out" in fault for fault in index.faults)
    assert main(["runs", "list"]) == main(["runs", "list", "--where", "optimizer=sgd"]) == 0
    shown = capsys.readouterr()
    assert shown.out.count(record.id) == 4 and shown.err.count(f"the run in {tmp_path / '2'} is left out") == 1
    assert main(["runs", "export", "--csv", str(tmp_path / "runs.csv")]) == 0
    assert capsys.readouterr().err.count("is left out") == 3


def test_an_index_of_version_1_keeps_its_runs(run, tmp_path):
    record = read_run(run)
    (tmp_path / "index").mkdir()
    database = sqlite3.connect(tmp_path / "index" / "index.sqlite")
    names = "kind name status begun ended sweep device".split()
    database.execute(f"CREATE TABLE runs (id TEXT PRIMARY KEY, folder, {', '.join(names)}, record)")
    database.execute("CREATE INDEX runs_by_begun ON runs (begun)")
    row = [
        record.id,
        str(run),
        *(getattr(record, name) for name in "kind name status begun ended sweep device".split()),
    ]
    database.execute(f"INSERT INTO runs VALUES ({', '.join('?' * 10)})", [*row, record.to_json()])
    database.execute("PRAGMA user_version = 1")
    database.commit()
    database.close()
    assert [found.record for found in RunIndex(tmp_path / "index").find()] == [record]


@pytest.mark.parametrize(
    "text, message",
    [
        (b"a: &a [1, 1]\nvary: {seed: [*a, *a]}", "it has an alias"),
        (b"vary: {seed: [" + b"1:" * 50_000 + b"1]}", "characters without quotes"),
        (b"vary: {seed: [0x" + b"f" * 100 + b"]}", "an integer has 400 bits, more than 63"),
        (b"vary: {seed: [" + b"1," * 30_000 + b"]}", "more than 20,000 values"),
        (b"vary: " + b"[" * 100 + b"]" * 100, "inside one another"),
        (b"vary: {seed: [2020-01-01]}", "a value is a date"),
        (b'vary: {seed: ["\\ud800"]}', "no YAML"),
    ],
)
def test_a_sweep_file_beyond_the_bounds_is_refused(text, message, tmp_path):
    (tmp_path / "sweep.yaml").write_bytes(text)
    with pytest.raises(SpecError, match=message):
        read_spec(tmp_path / "sweep.yaml")


def test_a_damaged_sweep_file_is_a_specification_or_refused(tmp_path):
    path = tmp_path / "sweep.yaml"
    for data in [*damaged(SPEC), *(random.Random(n).randbytes(200) for n in range(50))]:
        path.write_bytes(data)
        try:
            assert isinstance(read_spec(path), SweepSpec)
        except SpecError as error:
            assert str(path) in str(error)

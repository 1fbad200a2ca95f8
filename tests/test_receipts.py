"""Figures are tied to the programs that they are of, and a receipt makes them again; what was changed is refused."""

import json
import shutil

import figures
import picture_sources
import pytest
import receipt_tables
from matplotlib.figure import Figure

import bttlab.compiler.program as compiler
import bttlab.compiler.schedule.order as order
from bttlab.baseline.receipt import Receipt, _digest, details_of
from bttlab.cli import main
from bttlab.commands import replay
from bttlab.estimate.card import estimate
from bttlab.lab.charts import to_png
from bttlab.model import ModelConfig
from bttlab.util.settings import RecordError
from command_line import refused, run_json

from conftest import ROOT

BITS = ROOT / "data" / "receipts" / "bits.json"


@pytest.fixture
def estimated(tmp_path, capsys):
    """The receipt of an estimate."""
    path = tmp_path / "estimate.json"
    run_json(capsys, "estimate", "--encoders", "2", "--tokens", "13", "--receipt", path)
    return path


def change(path, **values):
    """Change entries of a receipt and seal it again, as nobody does by mistake."""
    content = json.loads(path.read_text())
    del content["sha256"]
    content |= values
    sealed = {name: value for name, value in content.items() if name != "receipt"}
    path.write_text(json.dumps(content | {"sha256": _digest(sealed)}))


# --- the figures of this checkout


@pytest.mark.every_python
def test_no_figure_is_of_an_earlier_program():
    assert len(list(figures.receipts())) > 50
    stale = figures.stale()
    assert not stale, f"of earlier programs; make figures: {', '.join(stale)}"


def test_pages_say_of_which_programs_the_dear_figures_are():
    marks = figures.accuracy_marks()
    assert marks in (ROOT / figures.ACCURACY).read_text(encoding="utf-8"), "make figures"
    assert "of earlier programs (2026-11-26" in marks
    assert figures.energy_mark() in (ROOT / figures.ENERGY).read_text(encoding="utf-8"), "make figures"


def test_pages_show_what_the_receipts_have(atis_lengths):
    readme, energy = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", figures.ENERGY))
    assert receipt_tables.scores() in readme and receipt_tables.race() in readme, "make figures"
    card = estimate(ModelConfig(), atis_lengths)
    assert receipt_tables.races() in energy and receipt_tables.over_card(card) in energy, "make figures"


def test_a_change_of_the_compiler_makes_every_figure_of_its_programs_stale(monkeypatch, no_stored_programs):
    wanted = {name for name, receipt in figures.receipts() if receipt.programs and not receipt.dear}
    compiler._compiled.cache_clear()
    monkeypatch.setattr(order, "EFFORT", 0)  # other programs, without the search that takes most of the time
    try:
        assert set(figures.stale()) == wanted and "data/receipts/pages.json" in wanted
    finally:
        compiler._compiled.cache_clear()


@pytest.mark.every_python
def test_training_on_the_emulated_card_has_the_recorded_bits_on_every_processor(capsys):
    """The promise is the emulated card's alone; the kernels of PyTorch play no part."""
    again = run_json(capsys, "replay", BITS)
    assert again["equal"] and Receipt.read(BITS).results["parameters"]


# --- replay


def test_a_receipt_repeats_and_says_what_differs(estimated, capsys):
    assert main(["replay", str(estimated)]) == 0
    assert "equal; 4 figures compared" in capsys.readouterr().out
    figure = json.loads(estimated.read_text())["figures"]["2-ENC.cycles"]
    change(estimated, figures={"2-ENC.cycles": figure | {"value": figure["value"] + 1}})
    assert main(["replay", str(estimated), "--json"]) == 1
    (line,) = json.loads(capsys.readouterr().out)["differences"]
    assert line.startswith("2-ENC.cycles: ") and "is now" in line


@pytest.mark.parametrize(
    "change_of, message",
    [
        (
            {"programs": [{"config": {}, "flow": "bidirectional", "sha256": "0" * 64, "sums": False}]},
            "program encoders 2",
        ),
        ({"corpora": {"13 tokens": "0" * 64}}, "corpus 13 tokens"),
        ({"settings": {"optimizer": "adamw"}}, "setting optimizer: 'adamw' is now 'sgd'"),
        ({"results": {"parameters": "0" * 64}}, "result parameters"),
    ],
)
def test_what_figures_are_made_of_is_compared(estimated, capsys, change_of, message):
    change(estimated, **change_of)
    assert main(["replay", str(estimated), "--json"]) == 1
    assert message in "".join(json.loads(capsys.readouterr().out)["differences"])


def test_one_changed_figure_is_refused_before_anything_runs(estimated, capsys, monkeypatch):
    monkeypatch.setattr(replay, "made_by", None)
    text = estimated.read_text()
    value = json.loads(text)["figures"]["2-ENC.joules"]["value"]
    estimated.write_text(text.replace(f'"value": {value}', f'"value": {value + 1}'))
    assert "was changed after it was made" in refused(capsys, "replay", estimated)


@pytest.mark.parametrize(
    "command, message",
    [
        (["doctor"], "'doctor' is no command that a receipt may name"),
        ([], "names no command: no options of this bttlab repeat it"),
        (["estimate", "--model", "net.py:Net"], "--model: no receipt can name it"),
        (["estimate", "--model=net.py:Net"], "--model: no receipt can name it"),
        (["train", "--out", "/etc"], "names a command that says where it writes"),
        (["train", "--out=/etc"], "names a command that says where it writes"),
        (["train", "--trust"], "--trust: no receipt can name it"),
        (["python", "tools/figures.py"], "is made in a checkout: python tools/figures.py"),
    ],
)
def test_a_receipt_runs_no_code_and_writes_nowhere_else(estimated, capsys, command, message):
    change(estimated, command=command)
    assert message in refused(capsys, "replay", estimated)


def test_a_run_of_a_method_is_repeated_by_its_part(tmp_path, capsys):
    path = tmp_path / "methods.json"
    run_json(capsys, "methods", "run", "dense", "--encoders", 1, "--budget", 8, "--record", path)
    (name,) = Receipt.read(path).parts
    assert name == "dense, airline, 1-ENC, 8 samples, batch 8, seed 0, cpu"
    again = run_json(capsys, "replay", path, "--part", name)
    assert again["command"][:3] == ["methods", "run", "dense"] and again["equal"]
    assert len(again["readings"]) == 3 and all(line.startswith("dev.") for line in again["readings"])
    records = [Receipt.read(ROOT / "data" / "methods" / record) for record in ("atis.json", "atis_tensor.json")]
    assert all(len(record.parts) == len(record.details) for record in records)


@pytest.mark.long
def test_the_tool_that_makes_the_tables_of_the_pages_is_run_again(tmp_path, capfd):
    """In a process of its own, with what it prints."""
    path = tmp_path / "pages.json"
    path.write_bytes((ROOT / "data" / "receipts" / "pages.json").read_bytes())
    assert main(["replay", str(path)]) == 0
    assert "equal; 24 figures compared" in capfd.readouterr().out
    name, figure = next(iter(json.loads(path.read_text())["figures"].items()))
    change(path, figures={name: figure | {"value": 2 * figure["value"]}})
    assert main(["replay", str(path), "--json"]) == 1
    (line,) = json.loads(capfd.readouterr().out)["differences"]
    assert line.startswith(f"{name}: ")


def test_every_tool_that_replay_runs_is_named_by_a_record():
    commands = [command for _, receipt in figures.receipts() for command in (receipt.command, *receipt.parts.values())]
    assert all(command in commands for command in replay.TOOLS)
    made_by_hand = [command for command in commands if command[:1] == ["python"] and command not in replay.TOOLS]
    assert {tuple(command[:2]) for command in made_by_hand} <= {
        ("python", "tools/accuracy.py"),  # collects runs: those whose options name their model are parts
        ("python", "tools/energy_to_quality.py"),
        ("python", "-m"),
    }


def test_a_file_that_is_no_receipt_is_one_line(tmp_path, estimated, capsys):
    for text, message in (
        ("{}", "no entry 'receipt'"),
        ("x", "no JSON"),
        ("[]", "no receipt"),
        ('{"receipt": 2}', "format"),
    ):
        (tmp_path / "no.json").write_text(text)
        assert message in refused(capsys, "replay", tmp_path / "no.json")
    change(estimated, figures={"x": {"value": "many"}})
    assert "figures.x.value is 'many'" in refused(capsys, "replay", estimated)
    with pytest.raises(RecordError, match="no JSON"):
        details_of(_written(tmp_path / "no.json", "x"))


def _written(path, text):
    path.write_text(text)
    return path


def test_a_training_on_the_emulated_card_is_repeated_to_the_bit(tiny_airline, tmp_path, capsys):
    path = tmp_path / "run.json"
    arguments = ["--data", str(tiny_airline), "--samples", "20", "--device", "emulated"]
    trained = run_json(capsys, "train", *arguments, "--out", tmp_path / "run", "--receipt", path)
    receipt = Receipt.read(path)
    assert receipt.command == ["train", *arguments] and receipt.results == {"parameters": trained["parameters_sha256"]}
    assert receipt.figures["test.slot_f1"].value == trained["test"]["slot_f1"]
    assert receipt.figures["seconds"].tolerance is None and receipt.figures["u50.joules"].tolerance == 0
    assert receipt.stale() == [] and receipt.programs[0].name == "encoders 2, bidirectional"
    again = run_json(capsys, "replay", path, "--write", tmp_path / "again.json")
    assert again["equal"] and [line.partition(":")[0] for line in again["readings"]] == ["seconds"]
    assert Receipt.read(tmp_path / "again.json").results == receipt.results
    assert "--model: no receipt can name it" in refused(
        capsys, "train", "--model", "net.py:Net", "--receipt", tmp_path / "no.json"
    )


def test_a_part_of_a_record_of_many_runs_is_named(capsys):
    path = ROOT / "data" / "accuracy" / "atis.json"
    assert "is of several runs: name one with --part" in refused(capsys, "replay", path)
    assert "no part 'x'" in refused(capsys, "replay", path, "--part", "x")
    long = Receipt.read(path).part("2-ENC tensor atis_long 30")
    assert long.command[-1] == "30" and set(long.results) == {"parameters"}
    assert 0.95 < long.figures["test.slot_f1"].value < 0.97


# --- pictures


def test_every_picture_is_drawn_from_what_is_here():
    assert {path.stem for path in picture_sources.IMAGES.glob("*.png")} == set(picture_sources.SOURCES)
    stale = picture_sources.stale()
    how = "make pictures (of the lab), make bench, tools/methods_page.py, bttlab race --picture"
    assert not stale, f"drawn from something else: {', '.join(stale)}; {how}"


def test_a_picture_of_another_record_or_program_is_stale(tmp_path, monkeypatch):
    for name in ("bench_step", "schedule"):
        shutil.copy(picture_sources.IMAGES / f"{name}.png", tmp_path)
    (tmp_path / "own.png").write_bytes(to_png(Figure(), description="nothing"))
    assert picture_sources.stale(tmp_path) == ["own.png"]
    changed = details_of(picture_sources.BENCHMARKS)["benchmarks"]["step"] | {"date": "2026-01-01"}
    monkeypatch.setitem(picture_sources.SOURCES, "bench_step", lambda: picture_sources.of_benchmark("step", changed))
    monkeypatch.setattr(picture_sources, "LAYER_TOKENS", 12)
    assert picture_sources.stale(tmp_path) == ["bench_step.png", "own.png", "schedule.png"]

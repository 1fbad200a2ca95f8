"""Results: docs/methods.md and its record; energy by a stand-in for a meter, on record, live and in figures."""

import json
import re
from collections import defaultdict
from dataclasses import replace

import adapters
import methods_page
import numpy as np
import pytest
import survey_page
from methods_page import PAGE, fill

from bttlab.baseline.receipt import Receipt
from bttlab.compiler.lowering import PARAMETER_VECTORS
from bttlab.compiler.machine import M
from bttlab.data import load_corpus
from bttlab.model import ModelConfig
from bttlab_methods import MethodError, Setting, Training, methods, parse, run_methods
from bttlab_methods.lab import presets
from bttlab_methods.lab_figures import draw_scatter
from bttlab_methods.record import ADAPTERS, FOLDER, Results, by_methods, frontier, read_gone, read_records
from bttlab_methods.survey import TECHNIQUES
from tiny_runs import CONFIG, SIZES


@pytest.fixture(scope="module")
def records():
    return read_records()


def test_the_page_says_what_the_records_say(records):
    text = PAGE.read_text(encoding="utf-8")
    assert fill(text, records) == text, "run: python tools/methods_page.py"


def test_the_survey_says_what_registry_and_records_say():
    text = survey_page.PAGE.read_text(encoding="utf-8")
    assert survey_page.fill(text) == text, "run: python tools/survey_page.py"


def test_the_nine_tips_have_the_numbers_of_the_files():
    def read(name: str) -> list[dict]:
        return json.loads((FOLDER / name).read_text(encoding="utf-8"))["details"]

    text, scores, seconds = survey_page.PAGE.read_text(encoding="utf-8"), defaultdict(list), defaultdict(list)
    for one in read("atis.json"):
        scores[one["methods"]].append(100 * one["scores"]["test"]["slot_f1"])
        seconds[one["methods"]].append(one["seconds_per_epoch"]["value"])
    points = {name: np.mean(values) - np.mean(scores["dense"]) for name, values in scores.items()}
    assert re.findall(r"^(\d)\. \*\*", text, re.M) == [str(number) for number in range(1, 10)]
    assert f"Lion comes to {points['lion']:+.1f} points" in text
    large = sorted(points[name] for name in ("lamb", "lars", "linear-scaling"))
    assert f"come to {large[0]:+.1f} to {large[2]:+.1f} points" in text
    assert f"Stacking takes {np.mean(seconds['stacking']) / np.mean(seconds['dense']):.2f} of the time" in text
    (zero,) = (one for one in read("airline_processes.json") if one["methods"] == "zero")
    assert f"{zero['memory']['peak']['value'] / 1e6:.0f} MB with ZeRO" in text


def techniques_of_the_page() -> list[list[str]]:
    """Return the rows of the survey's table: a technique's name and where it is."""
    text = survey_page.PAGE.read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[1] and row[1] not in ("here", "---")]


def test_every_technique_of_the_survey_is_a_row_or_says_why_not():
    rows = techniques_of_the_page()
    assert len(rows) == len({row[0] for row in rows}) == len(TECHNIQUES) > 48
    gone = read_gone()
    for name, here, score, peak, _, note in rows:
        if here.endswith("measured with 0.1.0"):
            assert score and peak and len(gone[here.split("`")[1]]) == 3
        assert note, name
    shown = {here.split("`")[1].partition(":")[0] for _, here, *_ in rows if here.startswith("`")}
    # Rows of no technique: tensors in few bits, and the reference of what is pretrained.
    assert set(methods()) - shown == {"tensor-int4", "tensor-int8", "full-finetuning"}


@pytest.mark.long
def test_every_row_of_the_survey_trains(corpus, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    setting = Setting(load_corpus(corpus), replace(CONFIG, format="dense", encoders=2), samples=16, batch=4)
    ran = 0
    for _, here, *_ in techniques_of_the_page():
        row = here.split("`")[1] if here.startswith("`") and "gone" not in here else ""
        if row and parse(row)[0].processes == 1:
            row = {"width": "width:factor=2", "data-pruning-kmeans": "data-pruning-kmeans:clusters=2"}.get(row, row)
            few = f"{row}:pretraining=16" if row in ("lora", "loretta", "adapters", "prompt-tuning") else row
            result = run_methods(setting, parse(few), splits=())
            assert result.samples == 16 and np.isfinite(result.losses).all(), row
            ran += 1
    assert ran == sum(bool(one.row) for one in TECHNIQUES) - 5  # five rows take two processes


def test_a_row_that_is_gone_says_where_its_numbers_are():
    for name in read_gone():
        if "+" not in name:
            with pytest.raises(MethodError, match=r"is no longer here; its results, .* are in docs/survey\.md"):
                parse(name)


def test_the_records_have_every_method_with_its_defaults_three_seeds_and_one_setting(records):
    alone, together = ({name: by_methods(results) for name, results in records.items()}).values()
    assert {"dense", *(name for name, kind in methods().items() if kind.processes == 1)} <= set(alone)
    for groups in (alone, together):
        for name, group in groups.items():
            assert [result.seed for result in group] == [0, 1, 2], name
        settings = {
            (result.corpus, result.encoders, result.batch, result.samples, result.device)
            for group in groups.values()
            for result in group
        }
        assert len(settings) == 1


def test_the_page_names_the_rows_of_older_versions(records):
    made = {(one.versions["bttlab"], one.methods) for results in records.values() for one in results}
    newest = max(version for version, _ in made)
    older = {methods for version, methods in made if version != newest}
    text = methods_page.versions(records)
    assert set(re.findall("`([^`]+)`", text)) == older and f"Version {newest} made" in text


def test_the_dense_model_has_more_numbers_than_the_banks_that_the_page_names():
    most = M.LANES * PARAMETER_VECTORS
    assert f"which hold {most:,} numbers" in PAGE.read_text(encoding="utf-8").replace("\n", " ")
    assert ModelConfig(format="dense").parameters_count > most


@pytest.mark.long
def test_figures_of_adapters_on_the_card_are_those_of_their_programs(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    groups, kept, made = by_methods(Results.read(ADAPTERS).results), Receipt.read(adapters.CARD), adapters.receipt()
    assert {name.rpartition(".")[0] for name in kept.figures} == set(groups)
    assert all([one.seed for one in group] == [0, 1, 2] for group in groups.values())
    other = [name for name, figure in made.figures.items() if not kept.figures[name].repeats(figure)]
    assert not other, "run: python tools/adapters.py"


def test_the_scatter_names_what_none_beats(records):
    results = records["atis.json"]
    named = {text.get_text() for text in draw_scatter(results).figure.axes[0].texts}
    assert {"dense", "tensor"} <= named <= set(by_methods(results))


def test_the_frontier_has_what_none_beats_with_the_spread_of_its_seeds(records):
    alone, together = records["atis.json"], records["atis_tensor.json"]
    lines = frontier({0.5: alone, 2: together})
    stacking = next(line for line in lines if "tensor+stacking" in line)
    scores = np.array([one.scores["test"]["slot_f1"] for one in together if one.methods == "tensor+stacking"])
    assert f"{scores.mean():.1%} ± {scores.std(ddof=1):5.1%}" in stacking and stacking.endswith("2 epochs, n = 3")
    tuned = [one for one in alone if one.methods == "loretta"]
    seconds = np.mean([0.5 * one.seconds_per_epoch["value"] + one.facts["pretraining_seconds"] for one in tuned])
    assert f"{seconds:5.0f} ±" in next(line for line in lines if "loretta" in line)
    assert any("dense, 0.5" in line for line in lines) and not any(" lion," in line for line in lines)
    [single] = frontier({0.5: alone[:1]})
    assert "± 0.0%" in single.replace("  ", " ") and single.endswith("n = 1")


def test_presets_are_of_all_records_and_name_their_scores(records):
    names = {title.partition(":")[0]: name for title, name in presets(records).items()}
    groups = [group for record in records.values() for group in by_methods(record).values()]
    peaks = {group[0].methods: group[0].memory["peak"]["value"] for group in groups}
    assert names["least memory"] == "tensor+rematerialisation" == min(peaks, key=peaks.get)
    best = max(groups, key=lambda group: np.mean([one.scores["test"]["slot_f1"] for one in group]))
    title = next(title for title in presets(records) if title.startswith("best slot F1"))
    assert names["best slot F1"] == best[0].methods
    assert f"slot F1 {np.mean([one.scores['test']['slot_f1'] for one in best]):.0%}" in title


DENSE = replace(CONFIG, format="dense")
OF_A_SAMPLE, OF_OTHER_WORK = 2, 1000  # joules


class Counter:
    """A meter whose joules the test counts."""

    how = "a stand-in"

    def __init__(self):
        self.joules = 0.0

    def begin(self):
        self._start = self.joules

    def end(self):
        return self.joules - self._start


@pytest.fixture
def meter(monkeypatch):
    """Training takes 2 J a sample, and whatever else is done 1000 J each time."""
    found = Counter()
    monkeypatch.setattr("bttlab_methods.run.find_meter", lambda device: (found, ""))

    def costly(function, joules):
        def called(*arguments):
            found.joules += joules(*arguments)
            return function(*arguments)

        return called

    monkeypatch.setattr(Training, "step", costly(Training.step, lambda _, batch: OF_A_SAMPLE * len(batch.samples)))
    for place in ("bttlab_methods.run.measure_memory", "bttlab_methods.run.score_split"):
        module, name = place.rsplit(".", 1)
        function = getattr(__import__(module, fromlist=[name]), name)
        monkeypatch.setattr(place, costly(function, lambda *_: OF_OTHER_WORK))
    return found


def test_joules_of_an_epoch_are_those_of_its_steps_and_no_others(corpus, meter):
    result = run_methods(Setting(load_corpus(corpus), DENSE, samples=36, batch=4), parse("lion"))
    assert result.joules_per_epoch == {
        "value": pytest.approx(OF_A_SAMPLE * SIZES["train"]),
        "unit": "J",
        "provenance": "measured",
        "how": "a stand-in, idle power included",
    }
    assert meter.joules > 3 * OF_OTHER_WORK

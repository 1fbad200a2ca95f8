"""The methods lab without a browser: ticking, refusing, training, results."""

import io
import time
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from bttlab.data import load_corpus
from bttlab.lab import MethodsLab, Workload
from bttlab.lab.energy_meters import EnergyMeter
from bttlab_methods.lab import MethodRun
from bttlab_methods.lab_figures import draw_results
from bttlab_methods.record import by_methods
from bttlab_methods.survey import TECHNIQUES
from fake_trainer import our_threads
from tiny_runs import CONFIG


@pytest.fixture(scope="module")
def workload(corpus):
    return Workload.of(load_corpus(corpus), replace(CONFIG, format="dense"))


@pytest.fixture
def lab(workload):
    made = MethodsLab(workload, samples=40)
    yield made
    made.close()
    assert not our_threads()


def _tick(lab, *names):
    for name in names:
        lab._boxes[name].value = True


def test_boxes_write_the_combination_and_keep_its_parameters(lab):
    _tick(lab, "tensor", "lion")
    assert lab._text.value == "tensor+lion"
    lab._text.value = "tensor:rank=3+lion"
    lab._boxes["lion"].value = False
    assert lab._text.value == "tensor:rank=3" and "arXiv 2501.06663" in lab._message.value
    lab._boxes["tensor"].value = False
    assert lab._text.value == "dense" and not lab._train.disabled


def test_a_text_ticks_the_boxes_and_replaces_the_preset(lab):
    lab._preset.index = 1
    assert lab._text.value == lab._preset.value
    lab._text.value = "lion+rezero"
    assert {name for name, box in lab._boxes.items() if box.value} == {"lion", "rezero"}
    assert lab._text.value == "lion+rezero" and not lab._preset.value


def test_a_technique_of_the_survey_chooses_its_row_or_says_why_it_has_none(lab):
    techniques = {one.name: one for one in TECHNIQUES}
    lab._tip.value = techniques["lottery ticket"]
    assert lab._text.value == "lottery-ticket" and lab._boxes["lottery-ticket"].value
    for name, said in (
        ("ZeRO", "bttlab methods run zero"),
        ("2:4 sparsity", "needs a GPU; sparse-2-4 is no longer here"),
        ("ELSA", "approximated by hashes"),
    ):
        lab._tip.value = techniques[name]
        assert said in lab._message.value
        assert lab._text.value == "lottery-ticket"


def test_a_technique_trains_beside_dense_and_tensor_once(lab, workload):
    techniques = {one.name: one for one in TECHNIQUES}
    lab._tip.value = techniques["SkipInit"]
    assert lab._beside.value
    for name, ran in (("SkipInit", ["dense", "tensor", "skipinit"]), ("ReZero", ["rezero"])):
        before = len(lab.results)
        lab._tip.value = techniques[name]
        lab._train.click()
        lab.wait()
        assert [result.methods for result in lab.results[before:]] == ran, [run.error for run in lab.dashboard.runs]
    assert [run.name for run in lab.dashboard.runs] == ["dense", "tensor", "skipinit", "rezero"]
    lab.train("fixup", samples=50)  # of another budget: dense and tensor again
    lab.wait()
    assert [(run.name, run.total) for run in lab.dashboard.runs[4:]] == [("dense", 50), ("tensor", 50), ("fixup", 50)]


def test_stopping_a_run_leaves_out_those_after_it(lab):
    lab._tip.value = next(one for one in TECHNIQUES if one.name == "Lion")
    lab.train(samples=10_000)
    while not (lab.dashboard.runs and lab.dashboard.runs[0].count):
        time.sleep(0.01)
    lab.train("lion")
    assert "stop it, or let it end, before you start another run" in lab.dashboard._message.value
    lab.dashboard.stop()
    lab.wait()
    assert [(run.name, run.state) for run in lab.dashboard.runs] == [("dense", "stopped")]


def test_the_search_shows_what_it_is_about(lab):
    def shown():
        return {name for name, box in lab._boxes.items() if box.layout.display != "none"}

    everything = shown()
    lab._search.value = "lion"
    assert "lion" in shown() < everything
    assert [family for family, group in lab._groups.items() if group.layout.display != "none"] == ["optimizers"]
    lab._search.value = ""
    assert shown() == everything == set(lab._boxes)


def test_what_does_not_combine_is_said_and_cannot_be_trained(lab):
    lab.train("lion+lion")
    assert "lion is named twice" in lab._message.value and lab._train.disabled
    assert lab.dashboard.runs == []


def test_runs_share_one_figure_and_give_results(lab):
    for text in ("dense", "tensor:rank=3,embedding_rank=3+lion"):
        lab.train(text)
        lab.wait()
    assert [run.state for run in lab.dashboard.runs] == ["finished"] * 2, [run.error for run in lab.dashboard.runs]
    dense, tensor = lab.results
    assert (dense.samples, tensor.methods) == (40, "tensor:rank=3,embedding_rank=3+lion")
    assert lab.dashboard.runs[0].memory["tensors"].value == dense.memory["peak"]["value"]
    assert lab.dashboard.runs[1].scores[-1][0] == 40
    shown = [text.get_text() for text in lab.dashboard._figure.memory.texts]
    for number, result in enumerate(lab.results, 1):
        assert f"{number}: {result.memory['peak']['value'] / 1e6:,.1f} MB (measured)" in shown
    picture = np.asarray(Image.open(io.BytesIO(lab._picture.value)).convert("L"))
    assert picture.std() > 10 and lab._picture.layout.display == "block"


def test_results_of_another_budget_or_rate_are_rows_of_their_own(lab):
    """They are no repetitions: their average would be the result of no training."""
    for samples, rate in ((40, 3e-4), (40, 3e-4), (24, 3e-4), (24, 3e-2)):
        lab.dashboard._rate.value = rate
        lab.train("dense", samples=samples)
        lab.wait()
    assert [len(group) for group in by_methods(lab.results).values()] == [2, 1, 1]
    memory, _, scores = draw_results(lab.results).figure.axes
    rows = ["40 samples, rate x 1", "24 samples, rate x 1", "24 samples, rate x 100"]
    assert [label.get_text().split("\n") for label in memory.get_yticklabels()] == [["dense", row] for row in rows]
    shown = [line.get_xdata().tolist() for line in scores.lines if line.get_marker() == "s"]
    groups = by_methods(lab.results).values()
    assert shown == [[100 * one.scores["dev"]["slot_f1"] for one in group] for group in groups]
    assert list(by_methods(lab.results[:2])) == ["dense"]


def test_what_other_threads_compute_is_no_time_of_a_run(lab, monkeypatch):
    """As drawing the dashboard, which takes as long as training the small model does."""

    def clock_of_all_threads():
        raise AssertionError("the clock of all threads was read")

    monkeypatch.setattr(time, "process_time", clock_of_all_threads)
    lab.train("dense")
    lab.wait()
    assert [run.state for run in lab.dashboard.runs] == ["finished"], lab.dashboard.runs[0].error
    assert "time.thread_time" in lab.results[0].seconds_per_epoch["how"]


def test_a_run_stops_between_two_batches(workload):
    run = MethodRun("dense", 100_000, 3e-4, EnergyMeter(None, "none"), workload, device="cpu")
    run.start()
    while not run.count:
        run.join(0.01)
    run.stop()
    assert run.join(60) and run.state == "stopped" and 0 < run.count < 100_000

"""Results: docs/methods.md and its record; energy by a stand-in for a meter, on record, live and in figures."""

from dataclasses import replace

import pytest
from methods_page import PAGE, fill

from bttlab.data import load_corpus
from bttlab_methods import Setting, Training, methods, parse, run_methods
from bttlab_methods.lab_figures import draw_scatter
from bttlab_methods.record import by_methods, read_records
from tiny_runs import CONFIG, SIZES


@pytest.fixture(scope="module")
def records():
    return read_records()


def test_the_page_says_what_the_records_say(records):
    text = PAGE.read_text(encoding="utf-8")
    assert fill(text, records) == text, "run: python tools/methods_page.py"


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


def test_the_scatter_names_what_none_beats(records):
    results = records["atis.json"]
    named = {text.get_text() for text in draw_scatter(results).figure.axes[0].texts}
    assert {"dense", "tensor"} <= named <= set(by_methods(results))


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

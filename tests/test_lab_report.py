"""The figure of a report: bars of slots and the matrix of intents, also of models that have only one of them."""

import numpy as np
import pytest

from bttlab.data.report import LabelScores, Report
from bttlab.lab import draw_report
from bttlab.lab.report_figures import SHOWN


def panels(report):
    return draw_report(report).figure.axes


def of_slots(count):
    return [LabelScores(f"slot{n}", 1.0, 0.5, n / 20, 100 - n) for n in range(count)]


def test_the_most_frequent_labels_are_drawn():
    count = SHOWN + 2
    confusion = np.diag(np.arange(count, 0, -1))
    confusion[0, 1] = 30  # most of the first intent
    left, right = panels(
        Report([], of_slots(count), [f"intent{n}" for n in range(count)], confusion.tolist(), 0.5, None)
    )
    assert [round(bar.get_width(), 6) for bar in left.patches] == [5.0 * n for n in range(SHOWN)]
    assert left.get_yticklabels()[1].get_text() == "slot1 (99)"
    assert right.images[0].get_array().shape == (SHOWN, SHOWN)
    assert right.images[0].get_array()[0, 1] == pytest.approx(30 / (30 + count))
    texts = {text.get_position(): (text.get_text(), text.get_color()) for text in right.texts}
    assert len(texts) == SHOWN + 1 and texts[1, 0] == ("30", "white") and texts[0, 0] == (str(count), "black")


@pytest.mark.filterwarnings("error")
def test_a_model_without_slots_and_one_without_intents():
    left, right = panels(Report([], [], ["only"], [[3]], 1.0, None))
    assert not left.patches and [text.get_text() for text in right.texts] == ["3"]
    left, right = panels(Report([], of_slots(2), [], [], None, None))
    assert len(left.patches) == 2 and not right.images and not right.texts

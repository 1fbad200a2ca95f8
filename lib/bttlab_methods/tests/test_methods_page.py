"""docs/methods.md and the record it is made of."""

from dataclasses import replace

import pytest
from methods_page import PAGE, fill, table

from bttlab.errors import BttlabError
from bttlab_methods import methods
from bttlab_methods.lab_figures import draw_scatter
from bttlab_methods.record import by_methods, read_records


@pytest.fixture(scope="module")
def records():
    return read_records()


def test_the_page_says_what_the_records_say(records):
    text = PAGE.read_text(encoding="utf-8")
    assert fill(text, records) == text, "run: python tools/methods_page.py"


def test_the_records_have_every_method_with_its_defaults_three_seeds_and_one_setting(records):
    alone, together = ({name: by_methods(results) for name, results in records.items()}).values()
    assert {"dense", *methods()} <= set(alone)
    for groups in (alone, together):
        for name, group in groups.items():
            assert [result.seed for result in group] == [0, 1, 2], name
        settings = {
            (result.corpus, result.encoders, result.batch, result.samples, result.device)
            for group in groups.values()
            for result in group
        }
        assert len(settings) == 1


def test_memory_and_time_stand_beside_those_of_the_reference(records):
    dense = by_methods(records["atis.json"])["dense"]
    half = [
        replace(
            result,
            methods="lion",
            memory=result.memory | {"peak": {"value": result.memory["peak"]["value"] / 2}},
            seconds_per_epoch={"value": 3 * result.seconds_per_epoch["value"]},
        )
        for result in dense
    ]
    lion = next(line for line in table([*dense, *half], "dense").splitlines() if "lion" in line)
    assert "(0.50)" in lion and "(3.00)" in lion


def test_a_page_without_its_markers_is_refused(records):
    with pytest.raises(BttlabError, match=r"methods.md has no lines '<!-- atis.json -->'"):
        fill("# Methods\n", records)


def test_the_scatter_names_what_none_beats(records):
    results = records["atis.json"]
    named = {text.get_text() for text in draw_scatter(results).figure.axes[0].texts}
    assert {"dense", "tensor"} <= named <= set(by_methods(results))

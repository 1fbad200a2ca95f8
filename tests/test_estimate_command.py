"""bttlab estimate on the command line."""

import pytest

from bttlab.cli import main
from command_line import refused, run_json


@pytest.mark.long
def test_estimate_of_the_papers_models(capsys):
    values = run_json(capsys, "estimate", "--encoders", 2, 4, 6, "--data", "airline")
    assert values["provenance"] == "modelled" and values["published"]["training_paper"]
    seconds = [one["seconds_per_epoch"]["value"] for one in values["estimates"]]
    assert seconds == sorted(seconds)
    for one in values["estimates"]:
        assert one["samples"] == 4478 and 12 < one["mean_length"] < 14
        assert set(one["at_clocks"]) == {"200", "150"}
        times = [one["at_clocks"][mhz]["seconds_per_epoch"]["value"] for mhz in ("200", "150")]
        assert times[1] == pytest.approx(times[0] * 200 / 150)


def test_estimate_for_people(capsys):
    assert main("estimate --encoders 2 --tokens 13 --clock 150 --rank 8".split()) == 0
    out = capsys.readouterr().out
    assert "at 150 MHz" in out and "modelled (u50-4), not measured" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--encoders 1 --clock 200 20 --tokens 13", "a clock of 20 MHz"),
        ("--rank 0 --tokens 13", "linear_rank is 0"),
        ("--tokens 0", "lengths are 1 to 32"),
        ("--data no-such-corpus", "no-such-corpus"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments, message):
    assert message in refused(capsys, "estimate", *arguments.split())

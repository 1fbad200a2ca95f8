"""bttlab estimate on the command line."""

import json

import pytest

from bttlab.cli import main


def run(capsys, *arguments):
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.long
def test_estimate_of_the_papers_models(capsys):
    code, out, _ = run(capsys, "estimate", "--encoders", "2", "4", "6", "--data", "airline", "--json")
    values = json.loads(out)
    assert code == 0 and values["provenance"] == "modelled" and values["published"]["training_paper"]
    seconds = [one["seconds_per_epoch"]["value"] for one in values["estimates"]]
    assert seconds == sorted(seconds)
    for one in values["estimates"]:
        assert one["samples"] == 4478 and 12 < one["mean_length"] < 14
        assert set(one["at_clocks"]) == {"200", "150"}
        times = [one["at_clocks"][mhz]["seconds_per_epoch"]["value"] for mhz in ("200", "150")]
        assert times[1] == pytest.approx(times[0] * 200 / 150)


def test_estimate_for_people(capsys):
    code, out, _ = run(capsys, "estimate", "--encoders", "2", "--tokens", "13", "--clock", "150", "--rank", "8")
    assert code == 0
    for words in ("at 150 MHz", "modelled (u50-4), not measured", "UltraRAM", "energy an epoch, J", "4,478 samples"):
        assert words in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--encoders", "1", "--clock", "200", "20"], "a clock of 20 MHz"),
        (["--rank", "0"], "linear_rank is 0"),
        (["--tokens", "0"], "lengths are 1 to 32"),
        (["--data", "no-such-corpus"], "no-such-corpus"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments, message):
    if not {"--tokens", "--data"} & set(arguments):
        arguments = [*arguments, "--tokens", "13"]
    code, out, err = run(capsys, "estimate", *arguments)
    assert code == 2 and not out and err.count("\n") == 1 and message in err

"""Text of files and names does not reach the terminal raw, and a missing terminal ends nothing."""

import json
import subprocess
import sys

import pytest
from rich.table import Table

from bttlab.runs import ProgressBar
from bttlab.util.errors import BttlabError
from bttlab.util.terminal import printable, result, say
from subprocess_env import environment

# a title, a colour, a link, a C1 control, a return, a bell, a turn of the direction, an invisible blank, a byte
HOSTILE = "\x1b]0;owned\x07\x1b[31m\x1b]8;;http://x\x1b\\\x9b2J\rok\x08\u202e\u200b\udcff"


def test_every_character_is_shown_or_escaped():
    assert printable("Größe 12 → 8") == "Größe 12 → 8"
    assert printable(HOSTILE).isprintable() and "\\x1b[31m" in printable(HOSTILE)
    assert printable("a\nb") == "a\\nb" and printable("a\nb\x1b", lines=True) == "a\nb\\x1b"
    assert str(BttlabError(HOSTILE)).isprintable()


def test_what_is_said_and_shown(capsys):
    say(HOSTILE)
    result(f"{HOSTILE}\n{HOSTILE}")
    table = Table(HOSTILE)
    table.add_row(HOSTILE.replace("[", ""))
    result(table)
    bar = ProgressBar()
    bar.note(f"{HOSTILE}\nbttlab: error: forged")
    shown = capsys.readouterr()
    assert _clean(shown.out) and _clean(shown.err)
    assert len(shown.err.splitlines()) == 2


def _clean(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


# --- a command line as shells and scripts make them


TRAIN = ["train", "--out", "r", "--samples", "1", "--data"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "closed"),
    [(["size"], "2>&-"), (["doctor"], "2>&-"), (["size", "-x"], "2>&-"), (TRAIN, "<&- 2>&-")],
)
def test_stderr_that_is_closed(short_airline, arguments, closed, tmp_path):
    if arguments == TRAIN:
        arguments = [*TRAIN, str(short_airline)]
    command = f"exec {sys.executable} -m bttlab {' '.join(arguments)} --json {closed}"
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env=environment(BTTLAB_RUNS=str(tmp_path)), capture_output=True
    )
    assert done.returncode == (2 if "-x" in arguments else 0)
    if done.returncode == 0:
        json.loads(done.stdout)

"""Text of files and names does not reach the terminal raw."""

from bttlab.runs import ProgressBar
from bttlab.util.errors import BttlabError
from bttlab.util.terminal import printable, result, say

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
    bar = ProgressBar()
    bar.note(f"{HOSTILE}\nbttlab: error: forged")
    shown = capsys.readouterr()
    assert _clean(shown.out) and _clean(shown.err)
    assert len(shown.err.splitlines()) == 2


def _clean(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))

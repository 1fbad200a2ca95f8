"""Run a command of `bttlab` in this process."""

import json

from bttlab.cli import main


def run_json(capsys, *arguments) -> dict:
    """What a command gives with --json."""
    capsys.readouterr()
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments) -> str:
    """The one line of a command that is refused: exit code 2, nothing on stdout."""
    capsys.readouterr()
    assert main([*map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("bttlab: error: ")]
    assert out == "" and len(lines) == 1 and err.endswith(lines[0] + "\n")
    return lines[0]

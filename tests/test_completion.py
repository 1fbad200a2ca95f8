"""Completion of the command line in a shell, as docs/commands.md says."""

import subprocess
import sys


def test_completion_in_bash(tmp_path):
    script = tmp_path / "bttlab"
    with script.open("w") as file:
        command = [sys.executable, "-m", "shtab", "--shell=bash", "bttlab.cli.build_parser"]
        subprocess.run(command, stdout=file, check=True)
    for words, expected in (("bttlab do", "doctor"), ("bttlab train --resu", "--resume")):
        number = len(words.split()) - 1
        lines = f"source {script}; COMP_WORDS=({words}); COMP_CWORD={number}; _shtab_bttlab; echo ${{COMPREPLY[@]}}"
        assert subprocess.run(["bash", "-c", lines], capture_output=True, text=True).stdout.split() == [expected]

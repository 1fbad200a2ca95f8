"""Run the command of a receipt again, and compare what it makes: figures, programs, corpora, parameters.

A file that was changed after it was made is refused (exit code 2). Exit code 1: something differs.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from bttlab.commands import COMMANDS, Outcome, Parser
from bttlab.commands.receipts import repeatable
from bttlab.util.errors import BttlabError
from bttlab.util.places import ROOT
from bttlab.util.plugins import plugins
from bttlab.util.terminal import one_line, say

DIFFERENT = 1
# A checkout's tools that make receipts and take --receipt, too. A receipt of another tool is made by hand.
TOOLS = (
    ["python", "tools/card_pages.py"],
    ["python", "tools/card_losses.py"],
    ["python", "tools/adapters.py"],
    ["python", "tools/subwords.py"],
    ["python", "-m", "benchmarks", "memory"],
    ["python", "tools/energy_to_quality.py", "--only", "tensor", "1"],
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="a receipt, as --receipt writes it")
    add("--part", metavar="NAME", help="of a receipt of several runs: repeat one of them")
    add("--write", type=Path, metavar="FILE", help="write the receipt of the repetition, too")


def run(options: argparse.Namespace) -> Outcome:
    from bttlab.baseline.receipt import Receipt

    kept = Receipt.read(options.file)
    if options.part is not None:
        kept = kept.part(options.part)
    elif kept.parts:
        raise BttlabError(f"{options.file} is of several runs: name one with --part, of {', '.join(kept.parts)}")
    again = made_by(kept.command, str(options.file))
    if options.write is not None:
        again.write(options.write, "--write")
    differences, readings = kept.differences(again), kept.readings(again)
    other = {name: version for name, version in kept.versions.items() if again.versions.get(name) != version}
    data = {
        "receipt": str(options.file),
        "command": kept.command,
        "equal": not differences,
        "differences": differences,
        "readings": readings,
        "other_versions": other,
    }
    compared = len(kept.figures) - len(readings)
    lines = [f"{kept.title}: {'differs' if differences else 'equal'}; {compared} figures compared"]
    lines += [f"  {line}" for line in differences]
    lines += [f"  read from a meter, not compared: {line}" for line in readings]
    lines += [
        f"  made with {name} {version}, repeated with {again.versions.get(name, 'none')}"
        for name, version in other.items()
    ]
    return Outcome(data, "\n".join(map(one_line, lines)), DIFFERENT if differences else 0)


def made_by(command: list[str], path: str):
    """Run a receipt's command and return the receipt that it makes.

    Raises BttlabError if it is not one of `bttlab`'s that receipts may name, nor one of a checkout's TOOLS.
    """
    if command[:1] == ["python"]:
        return _made_by_tool(command, path)
    from bttlab.baseline.receipt import Receipt

    if not command:
        raise BttlabError(f"{path} names no command: no options of this bttlab repeat it")
    if command != repeatable(command):
        raise BttlabError(f"{path} names a command that says where it writes; it is no receipt of this bttlab")
    try:
        module = plugins("commands")[command[0]].load() if command[0] not in COMMANDS else None
    except KeyError:
        raise BttlabError(f"{path} is of bttlab {command[0]}, which is not installed here") from None
    module = module or import_module(f"bttlab.commands.{command[0]}")
    say(f"bttlab: bttlab {' '.join(command)}")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "receipt.json"
        arguments = [*command, "--record" if command[0] in ("baseline", "methods") else "--receipt", str(made)]
        arguments += ["--out", str(Path(folder) / "run")] if command[0] == "train" else []
        parser = Parser(prog=f"bttlab {command[0]}", allow_abbrev=False)
        module.add_arguments(parser)
        module.run(parser.parse_args(arguments[1:], argparse.Namespace(command_line=arguments)))
        again = Receipt.read(made)
        return again.part(*again.parts) if len(again.parts) == 1 else again  # a record of one run, as of methods


def _made_by_tool(command: list[str], path: str):
    from bttlab.baseline.receipt import Receipt

    if command not in TOOLS or not (ROOT / "tools").is_dir():
        known = "; ".join(" ".join(each) for each in TOOLS)
        raise BttlabError(
            f"{path} is made in a checkout: {' '.join(command)}; of a checkout's tools, replay runs: {known}"
        )
    say(f"bttlab: {' '.join(command)}")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "receipt.json"
        call = [sys.executable, *command[1:], "--receipt", str(made)]
        tools = os.pathsep.join(filter(None, (str(ROOT / "tools"), os.environ.get("PYTHONPATH"))))
        if code := subprocess.run(call, cwd=ROOT, env=os.environ | {"PYTHONPATH": tools}).returncode:
            raise BttlabError(f"{' '.join(command)} ended with exit code {code}: see its lines above")
        return Receipt.read(made)

"""Measure what other people's packages do, and write the tables of docs/: python tools/others.py [PROBE…].

Each probe of tools/others/ runs in an environment of its own, with the packages pinned here. Its rows become a record
in data/others/. Without a probe the tables alone are written again, from the records.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pages import filled

from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file
from bttlab.util.places import ROOT
from bttlab.util.terminal import say

RECORDS, SOURCES = ROOT / "data" / "others", Path(__file__).parent / "others"
Row = Mapping[str, object]
Column = tuple[str, Callable[[Row], str]]


def share(key: str) -> Column:
    return key, lambda row: f"{row[key]:.2f}"


def text(key: str, title: str = "") -> Column:
    return title or key, lambda row: str(row[key])


def number(key: str, title: str, form: str) -> Column:
    return title, lambda row: format(row[key], form) if key in row else ""


PACKAGE: Column = "package", lambda row: f"{row['package']} {str(row['version']).partition('+')[0]}"


@dataclass(frozen=True)
class Probe:
    """A table of a page: the packages that are measured, and the columns after the package and the row's name."""

    page: str
    requirements: tuple[str, ...]
    row: str  # title of the column of the rows' names
    columns: tuple[Column, ...]


PROBES = {
    "tensor_words": Probe(
        "docs/tensor.md",
        (
            *("torch==2.13.0", "numpy==1.26.4", "tensorly==0.10.0", "tensorly-torch==0.5.0", "torchTT==0.5.0"),
            *("teneva==0.14.11", "quimb==1.16.0", "packaging==25.0"),  # tensorly's backend needs packaging
        ),
        "call",
        (
            text("word"),
            text("means", "what it means there"),
            ("ranks", lambda row: ", ".join(str(rank) for rank in row.get("ranks", ()))),
            number("numbers", "numbers", ",d"),
            number("error", "relative error", ".1g"),
            number("scale", "std over `nn.Linear`'s", ".2g"),
            number("bias", "largest bias", ".2g"),
        ),
    ),
    "counters": Probe(
        "docs/methods.md",
        (
            *("torch==2.13.0", "numpy==1.26.4", "fvcore==0.1.5.post20221221", "ptflops==0.7.5", "calflops==0.3.2"),
            *("thop==0.1.1.post2209072238", "torchinfo==1.8.0", "transformers==5.23.0", "accelerate==1.15.0"),
        ),
        "counter",
        (text("counts"), share("train()"), share("eval()"), share("eval(), no_grad"), share("a TT layer")),
    ),
    "converters": Probe(
        "docs/import.md",
        ("label-studio-sdk==2.1.2", "spacy==3.8.14", "nltk==3.10.4", "seqeval==1.2.2"),
        "what is converted",
        (text("in"), text("out"), text("said")),
    ),
    "torch_kernels": Probe(
        "docs/accelerator.md",
        ("torch==2.13.0", "numpy==1.26.4"),
        "function",
        (
            text("unit"),
            *(number(key, key, ".2g") for key in ("1 and many elements", "1 and 2 threads", "eager and compiled")),
            number("and float64", "and float64", ".2g"),
        ),
    ),
    "meters": Probe(
        "docs/energy.md",
        ("codecarbon==3.3.2", "eco2ai==0.3.12", "zeus==0.16.0", "pyJoules==0.5.1", "setuptools==80.9.0"),
        "meter",
        (text("measures"), share("sleeps beside busy neighbours"), text("child processes", "counts child processes")),
    ),
}


def measured(name: str) -> dict:
    """Return the record of a probe, measured in an environment that is made for it."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "bin", "python")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        say(f"{name}: installs {', '.join(PROBES[name].requirements)}")
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--no-compile", *PROBES[name].requirements], check=True
        )
        done = subprocess.run([python, SOURCES / f"{name}.py"], stdout=subprocess.PIPE, text=True, check=True)
    return {
        "about": f"Made by: python tools/others.py {name}",
        "provenance": "measured",
        "python": ".".join(map(str, sys.version_info[:3])),
        "rows": json.loads(done.stdout),
    }


def table(name: str) -> str:
    """Return the Markdown table of a probe's record."""
    probe = PROBES[name]
    columns = (PACKAGE, (probe.row, lambda row: str(row["row"])), *probe.columns)
    lines = [[title for title, _ in columns], ["---"] * len(columns)]
    record = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    lines += [[cell(row) for _, cell in columns] for row in record["rows"]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write(root: Path = ROOT) -> None:
    """Write the tables into the pages of a folder."""
    for name, probe in PROBES.items():
        page = root / probe.page
        write_file(page, filled(page.read_text(encoding="utf-8"), {name: table(name)}, probe.page))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("probes", nargs="*", metavar="PROBE", help=f"measured again: {', '.join(PROBES)}, or all")
    names = parser.parse_args().probes
    names = list(PROBES) if names == ["all"] else names
    if unknown := sorted(set(names) - set(PROBES)):
        raise BttlabError(f"no probe {', '.join(unknown)}; there are {', '.join(PROBES)}")
    for name in names:
        write_file(RECORDS / f"{name}.json", json.dumps(measured(name), indent=1, ensure_ascii=False) + "\n")
    write()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BttlabError as error:
        say(f"error: {error}")
        sys.exit(2)

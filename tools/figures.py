"""Make stale figures again, and write the pages that show them: python tools/figures.py (make figures).

A receipt is stale if the compiler no longer makes the program that it names. Receipts of commands of `bttlab` are made
again in minutes. Those that are dear stay, and the pages say of which programs they are.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import card_pages
import two_cards
from benchmarks import __main__ as benchmarks
from pages import filled

from bttlab.baseline.receipt import Receipt
from bttlab.commands.replay import made_by
from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file
from bttlab.util.places import ROOT
from bttlab.util.terminal import say

FOLDERS = ("data", "docs")
ACCURACY, ENERGY = "docs/accuracy.md", "docs/energy.md"
QUALITY, BENCHMARKS = "data/energy_to_quality.json", "docs/benchmarks.json"


def receipts(root: Path = ROOT) -> Iterator[tuple[str, Receipt]]:
    """Yield the name and the content of every receipt of the checkout."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.json")):
            text = path.read_text(encoding="utf-8")
            if '"receipt":' in text[:20]:
                yield str(path.relative_to(root)), Receipt.of_json(text, str(path))


def stale(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the programs of each receipt that is stale and not dear."""
    found = {name: receipt.stale() for name, receipt in receipts(root) if not receipt.dear}
    return {name: programs for name, programs in found.items() if programs}


def of_programs(receipt: Receipt) -> str:
    """Return of which programs a receipt's figures are."""
    if not receipt.stale():
        return "of the present programs"
    digests = sorted({one.sha256[:12] for one in receipt.programs if one.sha256})
    which = f" with SHA-256 {', '.join(digests)}…" if digests else ", whose digests were not kept"
    return f"of earlier programs ({receipt.date[:10]}{which})"


def accuracy_marks(root: Path = ROOT) -> str:
    """Return the list of docs/accuracy.md: of which programs each record is."""
    return "".join(
        f"- `{Path(name).name}`: {of_programs(receipt)}.\n"
        for name, receipt in receipts(root)
        if name.startswith("data/accuracy/") and receipt.programs
    )


def energy_mark(root: Path = ROOT) -> str:
    """Return the sentence of docs/energy.md: of which programs the counts on the card are."""
    return f"The counts of the card are {of_programs(Receipt.read(root / QUALITY))}.\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--all", action="store_true", help="also those that are not stale")
    parser.add_argument("--pages", action="store_true", help="write the pages alone")
    options = parser.parse_args()
    left = []
    for name, receipt in [] if options.pages else receipts():
        if receipt.dear or not receipt.programs or not (options.all or receipt.stale()):
            continue
        if receipt.command[0] == "python":
            if name == BENCHMARKS:  # its rows of memory; times are of the day of their record
                benchmarks.main(["memory"])
            continue  # the pages are written below
        say(f"{name}:")
        try:
            made_by(receipt.command, name).write(ROOT / name)
        except BttlabError as error:  # such as a corpus that is not here
            left.append(f"{name}: {error}")
    two_cards.main(["--again"] if not options.pages and two_cards.is_stale() else [])
    card_pages.write(ROOT)
    for name, marks in ((ACCURACY, accuracy_marks()), (ENERGY, energy_mark())):
        page = (ROOT / name).read_text(encoding="utf-8")
        write_file(ROOT / name, filled(page, {"programs": marks}, name))
    for line in left:
        say(f"not made again: {line}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())

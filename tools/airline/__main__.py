"""``PYTHONPATH=tools python -m airline --out data/airline`` writes the airline corpus again."""

import argparse
from pathlib import Path

from bttlab.util.files import write_file

from .generate import SEED, corpus_files

parser = argparse.ArgumentParser(prog="python -m airline", description="Write the built-in airline corpus.")
add = parser.add_argument
add("--out", required=True, type=Path, metavar="FOLDER", help="where to write the splits and the label lists")
add("--seed", type=int, default=SEED, help="another seed gives another corpus (default: %(default)s)")
arguments = parser.parse_args()
for name, content in corpus_files(arguments.seed).items():
    path = arguments.out / name
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, content)
print(arguments.out)

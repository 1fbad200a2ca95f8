"""``PYTHONPATH=tools python -m airline --out data/airline`` writes the airline corpus again."""

import argparse

from bttlab.data.store import store_corpus

from .generate import SEED, corpus_files

parser = argparse.ArgumentParser(prog="python -m airline", description="Write the built-in airline corpus.")
parser.add_argument("--out", required=True, metavar="FOLDER", help="where to write the splits and the label lists")
parser.add_argument("--seed", type=int, default=SEED, help="another seed gives another corpus (default: %(default)s)")
arguments = parser.parse_args()
print(store_corpus(corpus_files(arguments.seed), arguments.out))

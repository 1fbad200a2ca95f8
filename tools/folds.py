"""Folds of a corpus's training split, for choices that neither dev nor test has a part in.

    python tools/folds.py atis build/folds --parts 4

Each folder in build/folds is a corpus: `dev` is one fold, `train` the others, `test` the corpus's own dev split.
Utterances that are alike but for the values of their slots are in one fold, so that no template is seen in training.
"""

import argparse
import random
import sys
from pathlib import Path

from bttlab.data import Corpus, Split, load_corpus
from bttlab.data.augmentation import tag_chunks, type_of
from bttlab.data.corpus import OUTSIDE
from bttlab.data.store import files_of, store_corpus
from bttlab.errors import BttlabError
from bttlab.terminal import say

SEED = 5  # of the order in which templates are dealt out


def fold_indices(split: Split, parts: int) -> list[list[int]]:
    """Return the utterances of each fold, as indices into the split; folds differ by few utterances."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for i, (words, tags) in enumerate(zip(split.words, split.slots, strict=True)):
        template = (
            " ".join(words[begin:end]) if label == OUTSIDE else type_of(label) for begin, end, label in tag_chunks(tags)
        )
        alike.setdefault(tuple(template), []).append(i)
    templates = sorted(alike)
    random.Random(SEED).shuffle(templates)
    folds: list[list[int]] = [[] for _ in range(parts)]
    for template in templates:
        min(folds, key=len).extend(alike[template])
    return folds


def fold_files(corpus: Corpus, folds: list[list[int]], held_out: int) -> dict[str, bytes]:
    """Return the files of a fold's corpus, by path relative to its folder."""
    rest = [i for number, fold in enumerate(folds) for i in fold if number != held_out]
    splits = {"train": _taken(corpus.train, rest), "dev": _taken(corpus.train, folds[held_out]), "test": corpus.dev}
    return files_of(corpus.intent_labels, corpus.slot_labels, splits)


def _taken(split: Split, indices: list[int]) -> Split:
    return Split(*([column[i] for i in indices] for column in (split.words, split.slots, split.intents)))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("corpus", metavar="NAME|PATH")
    parser.add_argument("out", type=Path, metavar="FOLDER")
    parser.add_argument("--parts", type=int, default=4, metavar="N", help="folds, 2 or more (default: 4)")
    options = parser.parse_args(arguments)
    try:
        corpus = load_corpus(options.corpus)
        if not 2 <= options.parts <= len(corpus.train):
            raise BttlabError(f"--parts={options.parts}: take 2 to {len(corpus.train)}, as many as utterances at most")
        folds = fold_indices(corpus.train, options.parts)
        for held_out in range(options.parts):
            store_corpus(fold_files(corpus, folds, held_out), options.out / f"{corpus.name}{held_out}")
    except (BttlabError, OSError) as error:
        say(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Split a corpus's training split into folds, to choose settings without dev and test.

    python tools/folds.py atis build/folds --parts 4

Each folder in build/folds is a corpus: `dev` is one fold, `train` the others, `test` the corpus's own dev split.
Utterances that differ only in their slot values are in the same fold, so that no template of dev occurs in train.
"""

import argparse
import random
import sys
from pathlib import Path

from bttlab.data import Corpus, Split, load_corpus
from bttlab.data.augmentation import slot_values, type_of
from bttlab.data.corpus import OUTSIDE, files_of, store_corpus
from bttlab.util.errors import BttlabError
from bttlab.util.terminal import say

SEED = 5  # of the order in which templates are assigned to folds


def fold_indices(split: Split, parts: int) -> list[list[int]]:
    """Return the utterances of each fold as indices into the split; the folds have almost the same size."""
    by_template: dict[tuple[str, ...], list[int]] = {}
    for i, (words, tags) in enumerate(zip(split.words, split.slots, strict=True)):
        template = (
            " ".join(words[begin:end]) if label == OUTSIDE else type_of(label)
            for begin, end, label in slot_values(tags)
        )
        by_template.setdefault(tuple(template), []).append(i)
    templates = sorted(by_template)
    random.Random(SEED).shuffle(templates)
    folds: list[list[int]] = [[] for _ in range(parts)]
    for template in templates:
        min(folds, key=len).extend(by_template[template])
    return folds


def fold_files(corpus: Corpus, folds: list[list[int]], held_out: int) -> dict[str, bytes]:
    """Return the files of a fold's corpus, by path relative to its folder."""
    rest = [i for number, fold in enumerate(folds) for i in fold if number != held_out]
    splits = {"train": _taken(corpus.train, rest), "dev": _taken(corpus.train, folds[held_out]), "test": corpus.dev}
    return files_of(corpus.intent_labels, corpus.slot_labels, splits)


def _taken(split: Split, indices: list[int]) -> Split:
    return Split(*([column[i] for i in indices] for column in (split.words, split.slots, split.intents)))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("corpus", metavar="NAME|PATH")
    parser.add_argument("out", type=Path, metavar="FOLDER")
    parser.add_argument("--parts", type=int, default=4, metavar="N", help="folds, 2 or more (default: 4)")
    options = parser.parse_args(arguments)
    try:
        corpus = load_corpus(options.corpus)
        if not 2 <= options.parts <= len(corpus.train):
            raise BttlabError(f"--parts={options.parts}: use 2 to {len(corpus.train)}, the number of utterances")
        folds = fold_indices(corpus.train, options.parts)
        for held_out in range(options.parts):
            store_corpus(fold_files(corpus, folds, held_out), options.out / f"{corpus.name}{held_out}")
    except (BttlabError, OSError) as error:
        say(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

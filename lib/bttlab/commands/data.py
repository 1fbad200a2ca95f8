"""Make a corpus of utterances in CSV, JSON lines, CoNLL, or a folder of texts."""

import argparse
from collections import Counter
from pathlib import Path

from bttlab.commands import Outcome, add_actions
from bttlab.util.errors import BttlabError

SHOWN = 5  # labels


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser, {"import": "write a corpus that --data takes, from a file or a folder of texts"})
    add = actions["import"].add_argument
    formats = ".csv, .tsv, .jsonl, .json, .conll, .bio, .iob, or a folder with a folder of .txt files for each label"
    add("file", type=Path, metavar="FILE", help=formats)
    add("folder", type=Path, metavar="DIR", help="where the corpus goes; it must not be there yet")
    add("--text", default="text", metavar="COLUMN", help="column of a table with the words (default: text)")
    add("--label", metavar="COLUMN", help="column with the intent or class (default: label or intent)")
    add("--tags", metavar="COLUMN", help="column with a tag for each word, or spans (default: tags)")
    add("--dev", type=Path, metavar="FILE", help="utterances of the dev split (default: a tenth of FILE's)")
    add("--test", type=Path, metavar="FILE", help="utterances of the test split (default: a tenth of FILE's)")
    add("--seed", type=int, default=0, metavar="N", help="of that choice (default: 0)")


def run(options: argparse.Namespace) -> Outcome:
    from bttlab.data import read_corpus
    from bttlab.data.corpus import store_corpus
    from bttlab.data.importing import corpus_files, divided, read_utterances
    from bttlab.model import ModelConfig

    if options.folder.exists():
        raise BttlabError(f"{options.folder} exists; give a folder that is not there yet")
    if options.seed < 0:
        raise BttlabError(f"--seed {options.seed} is negative; take 0 or more")
    columns = options.text, options.label, options.tags
    given = {
        name: read_utterances(path, *columns)
        for name, path in (("dev", options.dev), ("test", options.test))
        if path is not None
    }
    splits = divided(read_utterances(options.file, *columns), given, options.seed)
    store_corpus(corpus_files(splits), options.folder)
    corpus = read_corpus(options.folder)
    lengths = [len(words) for split in splits.values() for words in split.words]
    folded = Counter(label.lower() for label in corpus.intent_labels)
    usual = ModelConfig()
    words = {word for sentence in corpus.train.words for word in sentence}
    data = {
        "folder": str(options.folder),
        "utterances": {name: len(split) for name, split in splits.items()},
        "intents": [{"name": n, "utterances": count} for n, count in Counter(corpus.train.intents).most_common()],
        "slot_labels": len(corpus.slot_labels),
        "alike": [label for label in corpus.intent_labels if folded[label.lower()] > 1],
        "words": len(words),
        "mean_length": sum(lengths) / len(lengths),
        "longest": max(lengths),
        "too_long": sum(length >= usual.sequence_length for length in lengths),
        "also_in_train": _repeated(splits),
    }
    return Outcome(data, _text(data, usual.sequence_length))


def _repeated(splits: dict) -> dict[str, int]:
    """Return how many utterances of dev and test stand in train, too."""
    known = set(map(tuple, splits["train"].words))
    return {name: sum(tuple(words) in known for words in splits[name].words) for name in ("dev", "test")}


def _text(data: dict, tokens: int) -> str:
    counts = ", ".join(f"{count:,} {name}" for name, count in data["utterances"].items())
    shown = [f"{intent['name']} {intent['utterances']:,}" for intent in data["intents"]]
    common = ", ".join(shown[:SHOWN]) + ", …" * (len(shown) > SHOWN)
    lines = [
        f"{data['folder']}: {counts}; {data['mean_length']:.1f} words on average, {data['longest']} at most",
        f"in train: {data['words']:,} words, intents {len(shown)} ({common}), slot labels {data['slot_labels']}",
    ]
    if data["alike"]:
        lines.append(f"labels that differ in upper and lower case alone: {', '.join(data['alike'])}")
    if repeated := {name: count for name, count in data["also_in_train"].items() if count}:
        told = " and ".join(f"{count:,} of {name}" for name, count in repeated.items())
        lines.append(f"also in train, word for word: {told}; scores on them say little")
    if data["too_long"]:
        lines.append(f"{data['too_long']:,} are cut to {tokens - 1} words, unless --sequence-length is larger")
    folder = Path(data["folder"]).absolute()
    return "\n".join([*lines, f"train on it with: bttlab train --data {folder}"])

"""Make a corpus of utterances: tables, JSON and other files of annotation tools, CoNLL, or a folder of texts."""

import argparse
from collections import Counter
from pathlib import Path

from bttlab.commands import Outcome, add_actions
from bttlab.util.errors import BttlabError

SHOWN = 5  # labels


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser, {"import": "write a corpus that --data takes, from a file or a folder of texts"})
    add = actions["import"].add_argument
    add("file", type=Path, metavar="FILE", help="a table, JSON, CoNLL, a tool's own file, or a folder: docs/import.md")
    add("folder", type=Path, metavar="DIR", nargs="?", help="where the corpus goes; it must not be there yet")
    add("--text", metavar="COLUMN", help="column of a table with the words (default: text, tokens or words)")
    add("--label", metavar="COLUMN", help="column with the intent or class (default: label or intent)")
    add("--tags", metavar="COLUMN", help="column with a tag for each word, or spans (default: tags, entities, spans …)")
    add("--ignore", metavar="COLUMN", action="append", default=[], help="a column with labels that is not to be read")
    overlaps = "which of several spans to keep: refuse (default), outer, longest, first"
    add("--overlaps", default="refuse", metavar="RULE", help=overlaps)
    add(
        "--tokenizer", metavar="NAME", help="spaces (default), words, runs, characters, or a tokenizer.json of subwords"
    )
    add("--offsets", metavar="UNIT", help="what spans count: characters (default) or utf-16")
    add("--dry-run", action="store_true", help="tell what would be read and what not; write nothing")
    add("--dev", type=Path, metavar="FILE", help="utterances of the dev split (default: a tenth of FILE's)")
    add("--test", type=Path, metavar="FILE", help="utterances of the test split (default: a tenth of FILE's)")
    add("--seed", type=int, default=0, metavar="N", help="of that choice (default: 0)")


def run(options: argparse.Namespace) -> Outcome:
    from bttlab.data import read_corpus
    from bttlab.data.corpus import store_corpus
    from bttlab.data.importing import check_alike, corpus_files, divided, read_utterances, unknown_to_train
    from bttlab.data.readers.account import Choices
    from bttlab.data.tokenizer import Tokenizer
    from bttlab.data.unify import unify_labels
    from bttlab.model import ModelConfig

    if options.folder is None and not options.dry_run:
        raise BttlabError("no DIR: say where the corpus goes, or take --dry-run")
    if options.folder is not None and options.folder.exists():
        raise BttlabError(f"{options.folder} exists; give a folder that is not there yet")
    if options.seed < 0:
        raise BttlabError(f"--seed {options.seed} is negative; take 0 or more")
    tokenizer = None if options.tokenizer is None else Tokenizer.of(options.tokenizer)
    ignore = frozenset(options.ignore)
    choices = Choices(
        options.text, options.label, options.tags, ignore, options.overlaps, options.offsets, tokenizer
    )  # fmt: skip
    parts = {"dev": options.dev, "test": options.test, "train": options.file}
    read = {name: read_utterances(path, choices) for name, path in parts.items() if path is not None}
    accounts = [read[name][1] for name in ("train", "dev", "test") if name in read]
    check_alike(read)
    unify_labels(read)
    if options.dry_run:
        data = {"accounts": [account.to_dict() for account in accounts]}
        return Outcome(data, "\n".join(line for account in accounts for line in account.lines()))
    splits = divided(
        read["train"][0], {name: split for name, (split, _) in read.items() if name != "train"}, options.seed
    )
    store_corpus(corpus_files(splits, tokenizer), options.folder)
    corpus = read_corpus(options.folder)
    lengths = [len(words) for split in splits.values() for words in split.words]
    usual = ModelConfig()
    words = {word for sentence in corpus.train.words for word in sentence}
    data = {
        "folder": str(options.folder),
        "utterances": {name: len(split) for name, split in splits.items()},
        "intents": [{"name": n, "utterances": count} for n, count in Counter(corpus.train.intents).most_common()],
        "slot_labels": len(corpus.slot_labels),
        "alike": _alike(corpus.intent_labels) + _alike({tag[2:] for tag in corpus.slot_labels if "-" in tag}),
        "words": len(words),
        "mean_length": sum(lengths) / len(lengths),
        "longest": max(lengths),
        "too_long": sum(length >= usual.sequence_length for length in lengths),
        "also_in_train": _repeated(splits),
        "accounts": [account.to_dict() for account in accounts],
    }
    notes = [note for account in accounts for note in account.notes()]
    unused = {name: why for account in accounts for name, why in account.unused.items()}
    left_out = sum((account.left_out for account in accounts), Counter())
    if unused:
        notes.append(f"not used: {', '.join(f'{name} ({why})' for name, why in unused.items())}")
    if left_out:
        notes.append(f"left out: {', '.join(f'{count:,} {name}' for name, count in left_out.items())}")
    notes += unknown_to_train(splits)
    read_as = [f"{account.file}: read as {account.reader}" for account in accounts]
    if len(accounts) == 1:
        read_as = [f"read as {accounts[0].reader}"]
    return Outcome(data, _text(data, usual.sequence_length, read_as, notes))


def _alike(labels) -> list[str]:
    """Return labels that differ from another in upper and lower case alone."""
    folded = Counter(label.lower() for label in labels)
    return sorted(label for label in labels if folded[label.lower()] > 1)


def _repeated(splits: dict) -> dict[str, int]:
    """Return how many utterances of dev and test stand in train, too."""
    known = set(map(tuple, splits["train"].words))
    return {name: sum(tuple(words) in known for words in splits[name].words) for name in ("dev", "test")}


def _text(data: dict, tokens: int, lines: list[str], notes: list[str]) -> str:
    counts = ", ".join(f"{count:,} {name}" for name, count in data["utterances"].items())
    shown = [f"{intent['name']} {intent['utterances']:,}" for intent in data["intents"]]
    common = ", ".join(shown[:SHOWN]) + ", …" * (len(shown) > SHOWN)
    lines += [
        f"{data['folder']}: {counts}; {data['mean_length']:.1f} words on average, {data['longest']} at most",
        f"in train: {data['words']:,} words, intents {len(shown)} ({common}), slot labels {data['slot_labels']}",
        *notes,
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

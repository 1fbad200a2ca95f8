"""Predict a sentence's labels, or its next word, with the model of a run's checkpoint."""

import argparse
from pathlib import Path
from typing import Any

from bttlab.commands import Outcome, devices
from bttlab.util.errors import BttlabError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add("text", nargs="+", metavar="TEXT", help='a sentence in quotes, such as "show me flights to boston"; or several')
    add("--run", type=Path, required=True, metavar="DIR", dest="folder", help="the run's folder")
    devices.add_device(parser, "reference, with --require-card auto")


def run(options: argparse.Namespace) -> Outcome:
    """Run the command."""
    from bttlab.data import Corpus, CorpusError, Split, Vocabulary, encode, load_corpus
    from bttlab.data.corpus import OUTSIDE
    from bttlab.data.metrics import named
    from bttlab.data.tags import TagDecoder
    from bttlab.runs import CheckpointStore
    from bttlab.runs.evaluation import decoded
    from bttlab.util.terminal import say

    checkpoint, _ = CheckpointStore(options.folder).load()
    settings, record = checkpoint.settings, checkpoint.corpus
    vocabulary = Vocabulary.from_list(record.vocabulary)
    sentences = [[_known(word, vocabulary) for word in text.split()] for text in options.text]
    if not all(sentences):
        raise BttlabError("a sentence has no words; give at least one")
    task = settings.config.task
    gives_next = "language model" in task
    most = settings.config.sequence_length - 1 - gives_next
    if (longest := max(map(len, sentences))) > most:
        raise BttlabError(f"a sentence has {longest} words, and the model takes at most {most}; cut it")
    empty = Split([], [], [])
    corpus = Corpus(record.name, options.folder, record.intent_labels, record.slot_labels, empty, empty, empty)
    given = [words + [""] * gives_next for words in sentences]  # a place for the word that is not known
    tags = [[OUTSIDE] * len(words) for words in given]  # placeholders, as the first intent is
    split = Split(given, tags, [record.intent_labels[0]] * len(sentences))
    samples = encode(split, vocabulary, corpus, settings.config)
    device = options.device or ("auto" if options.require_card else "reference")
    opened = devices.open_checkpoint(options, checkpoint, device)
    predictions = opened.trainer.predict(samples)
    if settings.decode_tags:
        try:
            train = load_corpus(settings.data, settings.unknown_labels).train
        except CorpusError as error:
            say(f"note: {error}; tags are decoded without the counts of its training split")
            train = None
        decoder = TagDecoder(record.slot_labels, record.intent_labels, train)
        predictions = decoded(opened.trainer, samples, predictions, decoder)
    intents, slots = named(corpus, split, predictions)
    rows = []
    for n, words in enumerate(sentences):
        row: dict[str, Any] = {"words": words}
        if "classification" in task:
            row["intent"] = intents[n]
        if "tagging" in task:
            row["slots"] = slots[n]
        if gives_next:
            token = int(predictions.slots[n, 1 + len(words)])
            row["next"] = record.vocabulary[token] if token < len(record.vocabulary) else None
        rows.append(row | {"unknown": [word for word in words if word not in vocabulary]})
    data = {"run": str(options.folder), "corpus": record.name, "device": opened.device, "predictions": rows}
    return Outcome(data, "\n\n".join(map(_described, rows)))


def _known(word: str, vocabulary: Any) -> str:
    """Return a word as the vocabulary has it: as it is, in lower case, or without punctuation, too."""
    from bttlab.data.corpus import PUNCTUATION

    lower = word.lower()
    return next((form for form in (word, lower, lower.strip(PUNCTUATION)) if form in vocabulary), lower)


def _described(row: dict) -> str:
    width = max(map(len, row["words"]))
    lines = [f"intent  {row['intent'] or 'none'}"] if "intent" in row else []
    lines += [f"  {word:{width}}  {tag}" for word, tag in zip(row["words"], row.get("slots", ()), strict=False)]
    lines += [f"next  {row['next'] or 'none'}"] if "next" in row else []
    if row["unknown"]:
        lines.append(f"unknown to the vocabulary: {' '.join(row['unknown'])}")
    return "\n".join(lines)

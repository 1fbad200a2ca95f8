"""Predict a sentence's labels, or its next word, with the model of a run's checkpoint."""

import argparse
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bttlab.commands import Outcome, devices
from bttlab.util.collection import paused_at_start
from bttlab.util.errors import BttlabError
from bttlab.util.reading import lines_of, read_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("text", nargs="*", metavar="TEXT", help='a sentence in quotes, such as "show me flights to boston"; or several')
    add("--file", type=Path, metavar="FILE", help="a sentence in each line of a text file, such as test/seq.in")
    add("--label-studio", type=Path, metavar="FILE", help="write the labels as predictions that Label Studio imports")
    add("--conll", type=Path, metavar="FILE", help="write the labels as CoNLL: a word and its tag in each line")
    devices.add_run(parser)
    devices.add_device(parser, "reference, with --require-card auto")


def run(options: argparse.Namespace) -> Outcome:
    with paused_at_start() as started:
        return _predict(options, started)


def _predict(options: argparse.Namespace, started: Callable[[], None]) -> Outcome:
    from bttlab.data import Split, Vocabulary, encode
    from bttlab.data.exporting import conll_text, label_studio_tasks
    from bttlab.runs.evaluation import predict, with_counts_of_tags
    from bttlab.runs.labelling import label, typed_pieces, typed_split
    from bttlab.util.files import write_file
    from bttlab.util.quantities import to_json
    from bttlab.util.terminal import one_line, say

    checkpoint = devices.load_checkpoint(options)
    settings, record = checkpoint.settings, checkpoint.corpus
    vocabulary = Vocabulary.from_list(record.vocabulary)
    texts = _sentences(options)
    corpus = record.without_splits(options.folder)
    typed = typed_split(texts, corpus, vocabulary)
    gives_next = "language model" in settings.config.task
    most = settings.config.sequence_length - 1 - gives_next
    for number, words in enumerate(typed.words, 1):
        if len(words) > most:
            raise BttlabError(f"sentence {number} has {len(words)} words, and the model takes at most {most}; cut it")
    given = typed
    if gives_next:  # a place for the word that is not known
        given = Split([[*words, ""] for words in typed.words], [[*tags, "O"] for tags in typed.slots], typed.intents)
    samples = encode(given, vocabulary, corpus, settings.config)
    device = options.device or ("auto" if options.require_card else "reference")
    opened = devices.open_checkpoint(options, checkpoint, device)
    if settings.decode_tags and "tagging" in settings.config.task:
        corpus, note = with_counts_of_tags(corpus, record, settings)
        if note:
            say(f"note: {note}")
    started()
    predictions = predict(opened.trainer, samples, corpus, settings.decode_tags)
    rows, answers = [], label(opened.trainer, corpus, vocabulary, typed, predictions)
    told = []
    pieces = [typed_pieces(text, corpus, vocabulary) for text in texts]
    for n, answer in enumerate(answers):
        row: dict[str, Any] = {"words": answer.words}
        if answer.intent_probability is not None:
            row |= {"intent": answer.intent, "intent_probability": answer.intent_probability}
        if answer.tags:
            spans = [{"words": answer.text(span), **asdict(span)} for span in answer.spans if span.slot != "O"]
            row |= {"slots": answer.tags, "slot_probabilities": answer.tag_probabilities, "spans": spans}
        if gives_next:
            token = int(predictions.slots[n, 1 + len(answer.words)])
            row["next"] = record.vocabulary[token] if token < len(record.vocabulary) else None
        rows.append(row | {"unknown": answer.unknown})
        told.append(str(answer) + (f"\nnext  {one_line(row['next'] or 'none')}" if gives_next else ""))
    if options.label_studio is not None:
        tasks = label_studio_tasks(texts, pieces, answers, f"bttlab {options.folder.name}")
        write_file(options.label_studio, to_json(tasks, indent=1), "--label-studio")
    if options.conll is not None:
        write_file(options.conll, conll_text(texts, pieces, answers), "--conll")
    data = {"run": str(options.folder), "corpus": record.name, "device": opened.device, "predictions": rows}
    return Outcome(data, "\n\n".join(told))


def _sentences(options: argparse.Namespace) -> list[str]:
    if options.file is None:
        if not options.text:
            raise BttlabError("no sentence; give TEXT, or a file of sentences with --file")
        for text in options.text:
            if Path(text).suffix and os.path.isfile(text):
                raise BttlabError(f"{text} is a file: --file {text} predicts its lines")
        return options.text
    if options.text:
        raise BttlabError("TEXT and --file FILE go one without the other; leave one out")
    lines = [line for line in lines_of(read_text(options.file, pipes=True)) if line.strip()]
    if not lines:
        raise BttlabError(f"{options.file} has no sentences; write one in each line")
    return lines

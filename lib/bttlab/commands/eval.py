"""Score the model of a run's checkpoint on a split of its corpus."""

import argparse
from collections.abc import Callable
from dataclasses import asdict

from bttlab.commands import Outcome, devices
from bttlab.runs.scores import counted, scores_in_words, tasks_of
from bttlab.util.collection import paused_at_start
from bttlab.util.errors import BttlabError
from bttlab.util.terminal import one_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--split", choices=("test", "dev", "train"), default="test", help="(default: test)")
    add("--data", metavar="NAME|PATH", help="another corpus, or another place of it (default: the run's)")
    add("--unknown-labels", choices=("error", "unk"), help="as for train (default: the run's)")
    add(
        "--decode-tags",
        action=argparse.BooleanOptionalAction,
        help="decode an utterance's tags together before they are scored (default: as the run's recipe says)",
    )
    add("--report", action="store_true", help="scores by intent and by slot type, and the intents that are confused")
    devices.add_run(parser)
    devices.add_device(parser, "auto, or the run's reference")
    devices.add_overlay(parser, "trainer")


def run(options: argparse.Namespace) -> Outcome:
    with paused_at_start() as started:
        return _evaluate(options, started)


def _evaluate(options: argparse.Namespace, started: Callable[[], None]) -> Outcome:
    from bttlab.data import Vocabulary, encoded_split, load_corpus
    from bttlab.runs import ProgressBar, tensors_digest
    from bttlab.runs.evaluation import predict, scores_of, with_counts_of_tags

    progress = ProgressBar()
    checkpoint = devices.load_checkpoint(options)
    settings, record = checkpoint.settings, checkpoint.corpus
    corpus = load_corpus(options.data or settings.data, options.unknown_labels or settings.unknown_labels)
    is_own = record.is_of(corpus)
    if not is_own:
        if not options.data:
            raise BttlabError(
                f"{corpus.folder} is not the corpus {record.name} that the run in {options.folder} was trained on; "
                "give its place, or the other corpus on purpose, with --data"
            )
        progress.note(f"note: {corpus.folder} is another corpus than {record.name}, which the run was trained on")
    has_slots, task = corpus.has_slots, settings.config.task
    if not is_own:
        corpus = record.relabelled(corpus)
        if "tagging" in task and not has_slots:
            progress.note(f"note: {corpus.folder} has no slots: its tags are not scored, and O in the mean loss")
    split, vocabulary = corpus.split(options.split), Vocabulary.from_list(record.vocabulary)
    samples, note = encoded_split(corpus, options.split, vocabulary, settings.config)
    progress.note(f"note: {note}")
    opened = devices.open_checkpoint(options, checkpoint, options.device or settings.device)
    progress.note(f"evaluating on {opened.announcement}")
    started()
    decode = settings.decode_tags if options.decode_tags is None else options.decode_tags
    of_tags = corpus
    if decode and not is_own and "tagging" in settings.config.task:
        of_tags, note = with_counts_of_tags(corpus, record, settings)
        if note:
            progress.note(f"note: {note}")
    predictions = predict(opened.trainer, samples, of_tags, decode, f"{options.split} split", progress)
    scores = scores_of(predictions, corpus, options.split, settings.config)
    if not has_slots:  # of the corpus, whose labels are now those of the run
        scores = {name: value for name, value in scores.items() if "tagging" not in tasks_of(name)}
    details = None
    if options.report:
        from bttlab.data.report import report

        details = report(corpus, split, predictions, task if has_slots else task.replace("tagging", ""))
    data = {
        "run": str(options.folder),
        "corpus": corpus.name,
        "split": options.split,
        "epochs_done": checkpoint.epochs_done,
        "position": len(checkpoint.losses),
        "decode_tags": decode,
        "device": opened.device,
        "parameters_sha256": tensors_digest(checkpoint.parameters),
        **scores,
    }
    trained = counted(checkpoint.epochs_done, "epoch")
    if data["position"]:
        trained += f" and {counted(data['position'], 'sample')}"
    trained += ", tags decoded" if decode and "slot_f1" in scores else ""
    data |= {"report": asdict(details)} if details else {}
    line = f"{one_line(corpus.name)} {options.split} after {trained}: {scores_in_words(scores)}"
    return Outcome(data, f"{line}\n\n{details}" if details else line)

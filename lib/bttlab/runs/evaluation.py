"""Predictions of a trained model for a split, and their scores."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from bttlab.data import Corpus, CorpusError, Samples, Split, load_corpus
from bttlab.data.metrics import score
from bttlab.data.samples import joined
from bttlab.data.tags import TagDecoder
from bttlab.model import ModelConfig, Predictions, Trainer, network_of, predict_in_batches
from bttlab.model.loop import LARGEST_PREDICTED, chunks
from bttlab.runs.progress import NoProgress, ProgressBar
from bttlab.runs.scores import SCORES, score_names
from bttlab.runs.settings import CorpusRecord, RunSettings
from bttlab.runs.stop import StopSignals

SILENT = NoProgress()


def predict(
    trainer: Trainer,
    samples: Samples,
    corpus: Corpus,
    decode_tags: bool = False,
    title: str = "",
    progress: ProgressBar = SILENT,
    stop: StopSignals | None = None,
) -> Predictions:
    """Predict samples of a corpus, on the trainer's device; decoded tags with PyTorch and the trainer's parameters.

    A model without intents has all of an utterance's tags go with each other. Raises StopRequested between two chunks,
    if the user asked for it.
    """

    def advance(losses: np.ndarray) -> None:
        progress.advance(losses)
        if stop is not None:
            stop.check()

    progress.begin(title, len(samples))
    try:
        if decode_tags and "tagging" in trainer.config.task:
            decoder = TagDecoder(corpus.slot_labels, corpus.intent_labels, corpus.train)
            model, size = trained_network(trainer), batch_size(trainer)
            return predict_in_batches(model, samples, size, decoder.decode, advance)
        parts = []
        for part in chunks(0, len(samples), most=LARGEST_PREDICTED):
            parts.append(trainer.predict(samples[part]))
            advance(parts[-1].losses)
        return joined(parts)
    finally:
        progress.end()


def with_counts_of_tags(corpus: Corpus, record: CorpusRecord, settings: RunSettings) -> tuple[Corpus, str]:
    """Return a corpus with the training split of a run's own, whose counts of tags decode the tags of its model.

    Parameters
    ----------
    corpus : Corpus
        What is predicted: another one than the run's, or one without splits.
    record : CorpusRecord
        Of the run's corpus.
    settings : RunSettings
        Of the run.

    Returns
    -------
    Corpus
        The same with the training split of the run's corpus, or with none if that corpus is not there or has changed.
    str
        A note that says so; empty if the split is the run's.
    """
    try:
        own = load_corpus(settings.data, settings.unknown_labels)
        why = "" if record.is_of(own) else f"{own.folder} is not the corpus {record.name} that the run was trained on"
    except CorpusError as error:
        own, why = corpus, str(error)
    if why:
        return replace(corpus, train=Split()), f"{why}; tags are decoded without the counts of its training split"
    return replace(corpus, train=own.train), ""


def trained_network(trainer: Trainer) -> nn.Module:
    model, parameters = network_of(trainer.config), trainer.store_parameters()
    for name, parameter in model.named_parameters():
        parameter.data = torch.from_numpy(parameters[name])
    return model


def batch_size(trainer: Trainer) -> int:
    """Return how many samples PyTorch predicts at once: a module may be written for one."""
    return 64 if isinstance(trainer.config, ModelConfig) else 1


def scores_of(predictions: Predictions, corpus: Corpus, split: str, model, most: int | None = None) -> dict[str, Any]:
    """Score a model's predictions of a split's first `most` utterances (default: all).

    The scores are "mean_loss", those fields of `bttlab.data.metrics.Scores` that the model has labels for, and
    "perplexity" of a language model.
    """
    part, losses = corpus.split(split)[:most], predictions.losses
    scores = {"mean_loss": float(np.mean(losses, dtype=np.float64)), "utterances": len(part)}
    names = [name for name in score_names(model.task) if corpus.has_slots or "tagging" not in SCORES[name].tasks]
    if "perplexity" in names:
        words = [min(len(sentence), model.sequence_length - 1) for sentence in part.words]
        return scores | {"perplexity": float(np.exp(np.average(losses, weights=words)))}
    return scores | {name: value for name, value in asdict(score(corpus, part, predictions)).items() if name in names}

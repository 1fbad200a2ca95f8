"""Label sentences with a trainer's model, with the probability of each label."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from bttlab.data import Corpus, CorpusError, Samples, Split, Vocabulary, encode
from bttlab.data.corpus import OUTSIDE, PAD, PUNCTUATION, UNK
from bttlab.data.metrics import named
from bttlab.data.spans import Labelled
from bttlab.model import ModelConfig, Predictions, Trainer, batch_logits, equal_length_batches, network_of


def logits_of(trainer: Trainer, samples: Samples) -> Iterator[tuple[np.ndarray, np.ndarray | None, np.ndarray | None]]:
    """Yield logits that PyTorch computes with the trainer's parameters, for samples of equal length at a time.

    Yields
    ------
    ndarray of int
        The indices of n samples.
    ndarray of shape (n, intents) or None, ndarray of shape (n, words, slots) or None
        None of labels that the model does not have.
    """
    model, parameters = network_of(trainer.config), trainer.store_parameters()
    for name, parameter in model.named_parameters():
        parameter.data = torch.from_numpy(parameters[name])
    size = 64 if isinstance(trainer.config, ModelConfig) else 1  # a module may be written for one sample
    random = np.random.default_rng(0)  # of the order of batches, which nothing depends on
    for batch in equal_length_batches(np.arange(len(samples)), samples.lengths, size, random):
        with torch.no_grad():
            logits = batch_logits(model, samples[batch])[:2]
        intents, slots = (None if part is None else part.numpy() for part in logits)
        yield batch, intents, slots


def split_words(text: str, vocabulary: Vocabulary) -> list[str]:
    """Return a sentence's words as the vocabulary has them: as written, in lower case, or without punctuation, too."""
    found = []
    for word in text.split():
        lower = word.lower()
        found.append(next((form for form in (word, lower, lower.strip(PUNCTUATION)) if form in vocabulary), lower))
    return found


def placeholder_split(sentences: Sequence[Sequence[str]], corpus: Corpus) -> Split:
    """Return sentences as a split whose labels are placeholders: O, and the corpus's first intent."""
    words = [list(sentence) for sentence in sentences]
    return Split(words, [[OUTSIDE] * len(one) for one in words], [corpus.intent_labels[0]] * len(words))


def label(
    trainer: Trainer,
    corpus: Corpus,
    vocabulary: Vocabulary,
    sentences: Sequence[Sequence[str]],
    predictions: Predictions | None = None,
) -> list[Labelled]:
    """Label sentences: the trainer predicts the labels, PyTorch their probabilities from the trainer's parameters.

    Raises CorpusError if a sentence is empty or longer than the model's.

    Parameters
    ----------
    corpus : Corpus
        Its label lists name the labels.
    sentences : sequence of sequence of str
        Words, as `split_words` returns them.
    predictions : Predictions, optional
        Of these sentences, such as decoded ones; by default the trainer is asked.
    """
    most = trainer.config.sequence_length - 1
    for words in sentences:
        if not 0 < len(words) <= most:
            raise CorpusError(f"a sentence has {len(words)} words; the model takes 1 to {most}: change it")
    split = placeholder_split(sentences, corpus)
    samples = encode(split, vocabulary, corpus, trainer.config)
    intents, tags = named(corpus, split, predictions or trainer.predict(samples))
    intent_names = corpus.intent_labels
    slot_names = [OUTSIDE if name in (PAD, UNK) else name for name in corpus.slot_labels]
    task, found = trainer.config.task, {}
    for batch, intent_logits, slot_logits in logits_of(trainer, samples):
        for place, n in enumerate(batch):
            words = split.words[n]
            one = {"words": words, "unknown": [word for word in words if word not in vocabulary]}
            if "classification" in task and intent_logits is not None:
                one |= {"intent": intents[n], "intent_chances": _chances(intent_logits[place], intent_names, UNK)}
            if "tagging" in task and slot_logits is not None:
                chances = [_chances(row, slot_names, OUTSIDE) for row in slot_logits[place]]
                one |= {"tags": tags[n], "tag_chances": chances}
            found[n] = Labelled(**one)
    return [found[n] for n in range(len(sentences))]


def _chances(logits: np.ndarray, names: Sequence[str], other: str) -> dict[str, float]:
    """Return the probability of each name; labels that have no name, which a model may have, count as `other`."""
    odds = np.exp(logits.astype(np.float64) - logits.max())
    found = dict.fromkeys(names, 0.0)
    for k, one in enumerate(odds / odds.sum()):
        name = names[k] if k < len(names) else other
        found[name] = found.get(name, 0.0) + float(one)
    return found

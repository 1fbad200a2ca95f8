"""Label sentences with a trainer's model, with the probability of each label."""

import re
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from bttlab.data import Corpus, CorpusError, Split, Vocabulary, encode
from bttlab.data.corpus import OUTSIDE, PAD, UNK
from bttlab.data.metrics import named
from bttlab.data.spans import Labelled
from bttlab.data.tokenizer import PUNCTUATION, Piece
from bttlab.model import Predictions, Trainer, batch_logits, equal_length_batches
from bttlab.runs.evaluation import batch_size, trained_network


def split_words(text: str, vocabulary: Vocabulary) -> list[str]:
    """Return a sentence's words as the vocabulary has them: as written, in lower case, or without punctuation, too.

    A word that it has in no form is in lower case, without the punctuation that no word of the vocabulary has at its
    ends; so punctuation alone is left out, as in a corpus that was imported from texts.
    """
    return [piece.form for piece in _words(text, vocabulary)]


def _words(text: str, vocabulary: Vocabulary) -> Iterator[Piece]:
    for match in re.finditer(r"\S+", text):
        word, lower = match[0], match[0].lower()
        forms = ((word, ""), (lower, ""), (lower.strip(PUNCTUATION), PUNCTUATION))
        marks = next((marks for form, marks in forms if form in vocabulary), vocabulary.foreign_punctuation)
        kept = word.strip(marks) if marks else word
        if not kept:
            continue
        start = match.start() + len(word) - len(word.lstrip(marks) if marks else word)
        yield Piece(start, start + len(kept), kept if kept in vocabulary else kept.lower())


def typed_pieces(text: str, corpus: Corpus, vocabulary: Vocabulary) -> list[Piece]:
    """Return a text's pieces by the corpus's tokenizer; words between spaces are as of `split_words`."""
    return [*_words(text, vocabulary)] if corpus.tokenizer.is_default else corpus.tokenizer.pieces(text)


def typed_split(texts: Sequence[str], corpus: Corpus, vocabulary: Vocabulary) -> Split:
    """Return texts in the words of the corpus's tokenizer, as a split whose labels are placeholders.

    Raises CorpusError if a text has no words.
    """
    pieces = [typed_pieces(text, corpus, vocabulary) for text in texts]
    split = placeholder_split([[piece.form for piece in of_text] for of_text in pieces], corpus)
    for tags, of_text in zip(split.slots, pieces, strict=True):
        tags[:] = [OUTSIDE if piece.first else PAD for piece in of_text]
    if not all(split.words):
        raise CorpusError("a sentence has no words; give at least one")
    return split


def placeholder_split(sentences: Sequence[Sequence[str]], corpus: Corpus) -> Split:
    """Return sentences as a split whose labels are placeholders: O, and the corpus's first intent."""
    words = [list(sentence) for sentence in sentences]
    return Split(words, [[OUTSIDE] * len(sentence) for sentence in words], [corpus.intent_labels[0]] * len(words))


def label(
    trainer: Trainer,
    corpus: Corpus,
    vocabulary: Vocabulary,
    sentences: Sequence[Sequence[str]] | Split,
    predictions: Predictions | None = None,
) -> list[Labelled]:
    """Label sentences: the trainer predicts the labels, PyTorch their probabilities from the trainer's parameters.

    Sentences are words as of `split_words`, or a split: its labels are not used, but for PAD of subwords that continue
    a word. `predictions` of them may be given, such as decoded ones. Raises CorpusError if a sentence is empty or
    longer than the model's.
    """
    most = trainer.config.sequence_length - 1
    split = placeholder_split(sentences.words if isinstance(sentences, Split) else sentences, corpus)
    if isinstance(sentences, Split):
        for tags, given in zip(split.slots, sentences.slots, strict=True):
            tags[:] = [PAD if tag == PAD else OUTSIDE for tag in given]
    for words in split.words:
        if not 0 < len(words) <= most:
            raise CorpusError(f"a sentence has {len(words)} words; the model takes 1 to {most}: change it")
    samples = encode(split, vocabulary, corpus, trainer.config)
    intents, tags = named(corpus, split, predictions or trainer.predict(samples))
    intent_names = corpus.intent_labels
    slot_names = [OUTSIDE if name in (PAD, UNK) else name for name in corpus.slot_labels]
    task, found, model = trainer.config.task, {}, trained_network(trainer)
    random = np.random.default_rng(0)  # of the order of batches, which nothing depends on
    for batch in equal_length_batches(np.arange(len(samples)), samples.lengths, batch_size(trainer), random):
        with torch.no_grad():
            intent_logits, slot_logits, *_ = batch_logits(model, samples[batch])
        for place, n in enumerate(batch):
            words = split.words[n]
            known = {"words": words, "unknown": [word for word in words if word not in vocabulary]}
            if "classification" in task and intent_logits is not None:
                known |= {"intent": intents[n], "intent_chances": _chances(intent_logits[place], intent_names, UNK)}
            if "tagging" in task and slot_logits is not None:
                chances = [_chances(row, slot_names, OUTSIDE) for row in slot_logits[place]]
                known |= {"tags": tags[n], "tag_chances": chances}
            found[n] = Labelled(**known)
    return [found[n] for n in range(len(split))]


def _chances(logits: torch.Tensor, names: Sequence[str], other: str) -> dict[str, float]:
    """Return the probability of each name; labels that have no name, which a model may have, count as `other`."""
    odds = logits.double().softmax(0).tolist()
    found = dict.fromkeys(names, 0.0)
    for k, chance in enumerate(odds):
        name = names[k] if k < len(names) else other
        found[name] = found.get(name, 0.0) + chance
    return found

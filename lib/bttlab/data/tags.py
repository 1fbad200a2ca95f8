"""The most likely BIO tags of an utterance, from a model's logits and the transitions in the training split."""

from collections.abc import Sequence

import numpy as np

from .corpus import PAD, UNK, Split

NEVER = -1e9  # score of what is not allowed: below every sum of logits
WEIGHT = 0.5  # of the transition scores; chosen on a fold of SNIPS's training split
PRIOR = 0.1  # added to the count of each pair of tags
ABSENT = 0.1  # penalty of a tag that never occurs with an intent, per occurrence expected if both were independent


class TagDecoder:
    """Viterbi search for the tags of an utterance's words.

    A model that labels each word independently may predict B-x I-y, which is not valid. The score of a sequence is the
    sum of its logits and of `WEIGHT` times log P(tag | previous tag) - log P(tag), estimated from the training split.
    Without a training split all valid sequences are equally likely. An I- tag must continue a chunk of its type.

    A tag that never occurs with the predicted intent in the training split is penalised: its score falls by `ABSENT`
    times the number of times that it would occur, were tags independent of intents.
    """

    def __init__(self, slot_labels: Sequence[str], intent_labels: Sequence[str], train: Split | None = None):
        number, ids = len(slot_labels), {label: i for i, label in enumerate(slot_labels)}
        self.begin, self.follow = np.zeros(number), np.zeros((number, number))
        self.allowed = np.zeros((len(intent_labels), number))
        if train is not None:
            self._count(train, ids, {label: i for i, label in enumerate(intent_labels)})
        for label, i in ids.items():
            kind = label[2:] if label.startswith("I-") else None
            if kind is not None and f"B-{kind}" in ids:
                self.begin[i] = NEVER
                after = [ids[f"B-{kind}"], i]
                self.follow[np.setdiff1d(np.arange(number), after), i] = NEVER
            if label in (PAD, UNK):
                self.allowed[:, i] = NEVER

    def _count(self, train: Split, ids: dict[str, int], intents: dict[str, int]) -> None:
        number = len(ids)
        first, pairs = np.full(number, PRIOR), np.full((number, number), PRIOR)
        together = np.zeros((len(intents), number))
        for tags, intent in zip(train.slots, train.intents, strict=True):
            known = [ids.get(tag, ids.get(UNK, 0)) for tag in tags if tag != PAD]
            first[known[:1]] += 1
            np.add.at(pairs, (known[:-1], known[1:]), 1)
            if intent in intents:
                np.add.at(together[intents[intent]], known, 1)
        every = first + pairs.sum(0)
        every = np.log(every / every.sum())
        self.begin = WEIGHT * (np.log(first / first.sum()) - every)
        self.follow = WEIGHT * (np.log(pairs / pairs.sum(1, keepdims=True)) - every)
        expected = together.sum(1, keepdims=True) * together.sum(0) / max(together.sum(), 1)
        self.allowed -= np.where(together == 0, ABSENT * expected, 0.0)

    def decode(self, logits: np.ndarray, intents: np.ndarray, labels: np.ndarray | None = None) -> np.ndarray:
        """Return the best tags, int32 of shape (n, words), of n utterances of equal length.

        The logits have the shape (n, words, slots), with slots for labels that the corpus may lack; `intents`, (n,),
        are predicted. Where `labels`, (n, words), are 0 (PAD), a subword continues a word: it is left out, and its tag
        is PAD.
        """
        if labels is not None and not labels.all():
            found = np.zeros(labels.shape, np.int32)
            for row, mask in enumerate(labels != 0):
                if mask.any():
                    found[row, mask] = self.decode(logits[row : row + 1, mask], intents[row : row + 1])[0]
            return found
        number = len(self.begin)
        known = intents < len(self.allowed)
        allowed = np.where(known[:, None], self.allowed[np.where(known, intents, 0)], self.allowed.max(0))
        scores = logits[:, :, :number].astype(np.float64) + allowed[:, None]
        best, before = self.begin + scores[:, 0], []
        for word in range(1, scores.shape[1]):
            candidates = best[:, :, None] + self.follow
            before.append(candidates.argmax(1))
            best = candidates.max(1) + scores[:, word]
        tags = [best.argmax(1)]
        for step in reversed(before):
            tags.append(step[np.arange(len(step)), tags[-1]])
        return np.stack(tags[::-1], axis=1).astype(np.int32)

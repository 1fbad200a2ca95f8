"""The same labels in all files of an import."""

from collections.abc import Mapping

from .corpus import SPLIT_NAMES, Split
from .label_names import split_intents
from .readers.account import Account


def several_of(split: Split) -> dict[str, list[str]]:
    """Return the labels of each sentence that has several, by its text."""
    labels: dict[tuple[str, ...], dict[str, None]] = {}
    for words, intent in zip(split.words, split.intents, strict=True):
        labels.setdefault(tuple(words), {})[intent] = None
    return {" ".join(words): list(found) for words, found in labels.items() if len(found) > 1}


def unify_labels(read: Mapping[str, tuple[Split, Account]]) -> None:
    """Give the same intents one label in all files of a corpus, and note what became of which.

    The order of several intents is that of the first utterance with them, in train, else in dev, else in test. The
    account of the first file has the spellings of all files.
    """
    files = [read[name] for name in SPLIT_NAMES if name in read]
    first: dict[frozenset[str], str] = {}
    for split, account in files:
        for place, label in enumerate(split.intents):
            intents = split_intents(label)
            kept = first.setdefault(frozenset(intents), label) if len(intents) > 1 else label
            if kept != label:
                split.intents[place] = kept
                account.reordered[f"{label} is {kept}"] += 1
                account.labels[label] -= 1
                account.labels[kept] += 1
        account.labels = +account.labels
        account.several = several_of(split)
    accounts = [account for _, account in files]
    for key in {key: None for account in accounts for key in account.spellings}:
        kind, _, name = key.partition(" ")
        accounts[0].spellings[key] = [*dict.fromkeys(s for one in accounts for s in _spellings(one, kind, name))]


def _spellings(account: Account, kind: str, name: str) -> list[str]:
    """Return how a file writes a label; none if it has no such label."""
    met = account.labels if kind == "intent" else account.slots
    return account.spellings.get(f"{kind} {name}", [name] if met[name] else [])

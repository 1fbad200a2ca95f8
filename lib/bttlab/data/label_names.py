"""Names of labels: how a spelling becomes a name, and how several intents of an utterance become one label."""

from collections.abc import Iterable

SEPARATOR = "#"  # between the intents of an utterance that has several, as in ATIS


def label_name(spelling: str) -> str:
    """Return the name of a label in a corpus, where blanks are underscores."""
    return "_".join(spelling.split())


def split_intents(label: str) -> list[str]:
    """Return the intents of a label: two of `flight#airfare`, and one of `c#`, because no intent has an empty name."""
    parts = label.split(SEPARATOR)
    return parts if all(parts) else [label]


def join_intents(intents: Iterable[str]) -> str:
    """Return the label of several intents, which `split_intents` takes apart if no name has a `#`."""
    return SEPARATOR.join(intents)

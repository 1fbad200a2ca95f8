"""Repair inconsistent BIO tags."""

from collections.abc import Collection, Sequence


def repaired(tags: Sequence[str], labels: Collection[str]) -> list[str]:
    """Return the tags of an utterance such that every I- tag continues a chunk of its type.

    A model that names each word's tag by itself may say ``B-x I-y``, which no utterance bears. The chunk keeps the type
    with which it begins, so the I- becomes ``I-x``; one that follows no chunk begins one. Well-formed tags stay as they
    are. Where the label wanted does not exist, the next rule holds, and at last the tag stays.

    Parameters
    ----------
    labels : collection of str
        The slot labels there are.
    """
    result: list[str] = []
    chunk = ""  # the type of the one that a tag may continue
    for tag in tags:
        kind, _, name = tag.partition("-")
        if kind == "I":
            tag = next(label for label in (f"I-{chunk}", f"B-{name}", tag) if label in labels or label == tag)
            name = tag[2:]
        chunk = name
        result.append(tag)
    return result

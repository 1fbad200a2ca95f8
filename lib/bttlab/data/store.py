"""Write a corpus to disk atomically."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from bttlab.util.files import write_folder

from .corpus import CorpusError, Split


def files_of(intent_labels: Sequence[str], slot_labels: Sequence[str], splits: Mapping[str, Split]) -> dict[str, bytes]:
    """Return the files of a corpus in the common layout, by relative path; labels are in the order of their ids."""
    lines = {"intent_label.txt": intent_labels, "slot_label.txt": slot_labels}
    for name, split in splits.items():
        lines[f"{name}/seq.in"] = [" ".join(words) for words in split.words]
        lines[f"{name}/seq.out"] = [" ".join(tags) for tags in split.slots]
        lines[f"{name}/label"] = split.intents
    return {name: "".join(f"{line}\n" for line in text).encode() for name, text in lines.items()}


def store_corpus(files: Mapping[str, bytes], folder: str | os.PathLike) -> Path:
    """Write a corpus, files by relative path, into a new folder, whole or not at all.

    Raises CorpusError if the folder cannot be written, or there is one of that name.
    """
    try:
        write_folder(Path(folder), files)
    except OSError as error:
        raise CorpusError(f"cannot write a corpus to {folder}: {error.strerror}; choose another folder") from error
    return Path(folder)

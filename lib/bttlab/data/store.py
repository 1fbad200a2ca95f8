"""Write a corpus to disk atomically."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from .corpus import CorpusError, Split


def files_of(intent_labels: Sequence[str], slot_labels: Sequence[str], splits: Mapping[str, Split]) -> dict[str, bytes]:
    """Return the files of a corpus in the common layout, by path relative to its folder.

    Parameters
    ----------
    intent_labels, slot_labels : sequence of str
        In the order of their ids.
    splits : mapping of str to Split
        By name.
    """
    lines = {"intent_label.txt": intent_labels, "slot_label.txt": slot_labels}
    for name, split in splits.items():
        lines[f"{name}/seq.in"] = [" ".join(words) for words in split.words]
        lines[f"{name}/seq.out"] = [" ".join(tags) for tags in split.slots]
        lines[f"{name}/label"] = split.intents
    return {name: "".join(f"{line}\n" for line in text).encode() for name, text in lines.items()}


def store_corpus(files: Mapping[str, bytes], folder: str | os.PathLike) -> Path:
    """Write a corpus into ``folder``, replacing existing files.

    The files are first written to a temporary folder next to it and then renamed, so that no incomplete corpus is
    found during the write, after a crash or on a full disk.

    Parameters
    ----------
    files : mapping of str to bytes
        Contents by path relative to the folder.

    Raises
    ------
    CorpusError
        If the folder cannot be written.
    """
    folder = Path(folder)
    staging = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        for name, content in files.items():
            path = staging / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if not folder.exists():
            try:
                staging.rename(folder)
                return folder
            except OSError:
                if not folder.is_dir():  # otherwise another process has just created it
                    raise
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(staging / name, folder / name)
        return folder
    except OSError as error:
        raise CorpusError(f"cannot write a corpus to {folder}: {error.strerror}; choose another folder") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)

"""The corpora that are not the project's to give."""

import os
from pathlib import Path

import pytest

from bttlab.data.find import corpus_places

ROOT = Path(__file__).resolve().parents[2]


def real_corpus(name: str) -> Path:
    """Return the folder of a real corpus. Without it the test is skipped, or fails with $CI; nothing is downloaded."""
    for place in (*corpus_places(name), ROOT.parent / "shared" / "data" / name):
        if (place / "train" / "seq.in").is_file():
            return place
    absent = f"the corpus {name} is not here: $BTTLAB_DATA may name the folder that holds it (docs/hosts.md)"
    pytest.fail(absent) if os.environ.get("CI") else pytest.skip(absent)

"""Find a corpus by path or name, on this machine or by download."""

import os
from pathlib import Path

from bttlab.util.places import ROOT

from .corpus import Corpus, CorpusError, read_corpus
from .download import SOURCES, DownloadError, download


def load_corpus(name_or_path: str | os.PathLike, unknown_labels: str = "error") -> Corpus:
    """Find and read a corpus; see :func:`find_corpus` and :func:`bttlab.data.corpus.read_corpus`."""
    return read_corpus(find_corpus(name_or_path), unknown_labels)


def corpus_places(name: str) -> list[Path]:
    """Return the folders to search for a corpus of this name; the last is the user cache."""
    import platformdirs  # here, because a corpus given by its folder does not need it

    places = [ROOT / "data" / name, platformdirs.user_cache_path("bttlab") / "data" / name]
    if os.environ.get("BTTLAB_DATA"):
        places.insert(0, Path(os.environ["BTTLAB_DATA"]) / name)
    return places


def find_corpus(name_or_path: str | os.PathLike) -> Path:
    """Return the folder of a corpus.

    An existing folder, or any string with a path separator, is a path. A name is searched as a folder in
    ``$BTTLAB_DATA``, the project's ``data/`` and the user cache. If atis or snips is not found, it is downloaded to
    the user cache.

    Raises CorpusError if the corpus is not found; the message names the places searched.
    """
    name = os.fspath(name_or_path)
    path = Path(name).expanduser()
    if name and (path.is_dir() or os.sep in name or (os.altsep or os.sep) in name):
        if not path.is_dir():
            raise CorpusError(f"{path} is not a folder; --data takes the folder of a corpus or a name such as airline")
        return path
    places = corpus_places(name)
    for place in places:
        if name and place.is_dir():
            return place
    searched = f"searched {', '.join(map(str, places))}"
    if name in SOURCES:
        try:
            return download(name, places[-1])
        except DownloadError as error:
            searched += f" and tried to download it ({error})"
    raise CorpusError(f"no corpus {name!r}: {searched}; give the path of its folder, or use --data airline")

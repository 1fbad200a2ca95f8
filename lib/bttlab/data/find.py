"""Find a corpus by path or name, on this machine or by download: ATIS and SNIPS, with pinned SHA-256.

ATIS belongs to the Linguistic Data Consortium, SNIPS is CC0; neither is part of this repository.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from bttlab.util.places import ROOT

from .corpus import Corpus, CorpusError, read_corpus, store_corpus

BASE_URL = "https://raw.githubusercontent.com/monologg/JointBERT/41f1e8422544a422fd7a9dd7d00302294122f52b/data"
TIMEOUT_S = 20  # without data from the server

# SHA-256 of every file, by corpus.
SOURCES = {
    "atis": {
        "intent_label.txt": "d4e228c803961a6939ceaa5c791e7730457c92480687144bdfd10e4d0d9b8284",
        "slot_label.txt": "3986c69b49e5895826fa021e5dc57382e6e9724ef58182b418997ca0cacbbcb3",
        "train/seq.in": "3a670980841b21ab39088b2595efc17d487cdc45769c075a3e5f9458bba28c7f",
        "train/seq.out": "14c7131bd66562f797dbd7189bc7358f0cf354c6afb0785a9ab973c35b58f34c",
        "train/label": "d0a771547665eecbdf9f96ea015ef07d1f6ee9f063e861020dafabb3c2a04377",
        "dev/seq.in": "c7435b96e7948393608c34819628e863c5338f11ca68e8f896d2cc041d8e17f8",
        "dev/seq.out": "83ccff3e36f83a993f8e5b5b82adf3256076f234abda4d784051381d7ac76922",
        "dev/label": "06957cfe6fdffac84f8280bc3a1f8ca85c85631b363817aa4543aac611f8addf",
        "test/seq.in": "4b2119fc59c37f9398c6605db435d4f467505009e6ee3e5af04fed09f39dc397",
        "test/seq.out": "a4690d6bceadc06876d1ff99bc401744aa981cb321e598ae12a3859d7be53254",
        "test/label": "ce4bfe6590d9498e1078f30b4137d3e8b3e94277b444b26360c0bf2e9e282761",
    },
    "snips": {
        "intent_label.txt": "65e97527fa7048ee19a5a9a030c1feb43846ac48a99d2efeacbf44b9dd6014e8",
        "slot_label.txt": "d355b87d41fe23ff1c9d81e419333387590a305b32f7431df170deb379614d26",
        "train/seq.in": "04ad1e3f2121d83c6478f9a4b17d2dbdc21d06d6127f73cb7af835ed733f9855",
        "train/seq.out": "fd5f2121d8055827e5d6b3d3bac30f3d7e94e82a5d437751960cbdd9e1b4f6d3",
        "train/label": "bfd7df6cf9dd76c5da5d8b61bc85f90386197bdd3d7510c1d324c051537b962f",
        "dev/seq.in": "64e0f6d8ad8aab3a3828164d7d53731a0993d3ca1aed437ceaca6d3d568d410e",
        "dev/seq.out": "712e6d34feb8d52d208b820a5f8bae6e6ff990f08374507dfde22de389088319",
        "dev/label": "9c1dd041216f647bcfca838aaf1a48eb5781e4404256d31ff07cd38a5436c52f",
        "test/seq.in": "c1e341173fcea2951a8ca371956a6f81c76de87b9583c62eb87edd6158fa3a7c",
        "test/seq.out": "58c07c9097d5e1f78889765c2a535a160f6455b90b3142055c8051847afcca47",
        "test/label": "37a26da3ad079bb41c42c85a3a8f827eb47efec4c5917ce5d08f4b2736e4f830",
    },
}


class DownloadError(CorpusError):
    """A download fails or has the wrong SHA-256."""


def load_corpus(name_or_path: str | os.PathLike, unknown_labels: str = "error") -> Corpus:
    """Find a corpus and read it.

    Parameters
    ----------
    name_or_path : str or path
        As for :func:`find_corpus`.
    unknown_labels : {"error", "unk"}
        As for :func:`read_corpus`.

    Returns
    -------
    Corpus
        Its three splits with their labels.

    Raises
    ------
    CorpusError
        If there is no such corpus, or a line of it breaks a rule; the message names the file and the line.
    """
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

    Parameters
    ----------
    name_or_path : str or path
        An existing folder, or any string with a path separator, is a path. A name is searched as a folder in
        ``$BTTLAB_DATA``, the project's ``data/`` and the user cache. If atis or snips is not found, it is downloaded
        to the user cache.

    Returns
    -------
    path
        The folder.

    Raises
    ------
    CorpusError
        If the corpus is not found; the message names the places searched.
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


def download(name: str, folder: str | os.PathLike) -> Path:
    """Download a corpus of :data:`SOURCES` into ``folder``, which is written only if every file has its pinned SHA-256.

    Raises DownloadError if a file cannot be fetched, or its SHA-256 is wrong.
    """
    import pooch  # slow to import

    pooch.get_logger().setLevel("ERROR")
    with TemporaryDirectory() as place:
        files = pooch.create(place, f"{BASE_URL}/{name}/", registry=SOURCES[name])
        loader = pooch.HTTPDownloader(timeout=TIMEOUT_S)
        found = {}
        for file in SOURCES[name]:
            try:
                path = files.fetch(file, downloader=loader)  # pyright: ignore[reportArgumentType] # pooch declares a bool
                found[file] = Path(path).read_bytes()
            except (OSError, ValueError) as error:  # ValueError: another SHA-256
                raise DownloadError(f"{name}/{file} cannot be downloaded: {error}; nothing was stored") from None
    try:
        return store_corpus(found, folder)
    except CorpusError:
        if not Path(folder).is_dir():  # else another process has just downloaded it
            raise
        return Path(folder)

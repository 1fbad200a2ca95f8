"""The notebooks as copies to work in. `pynq get-notebooks` copies them, too, from the folder that is the path here."""

import os
from pathlib import Path

from bttlab.places import ROOT

FOLDER = ROOT / "notebooks"
__path__ = [str(FOLDER)]


def copy_notebooks(to: str | os.PathLike) -> dict[str, list[str]]:
    """Copy the notebooks into a folder; what is there already stays as it is.

    Parameters
    ----------
    to : path
        It is made if it is not there.

    Returns
    -------
    dict of str to list of str
        Names that were "copied", those that were there as they come ("same"), and those that are somebody's work or of
        another version ("kept").

    Raises
    ------
    OSError
        If the folder cannot be made or written to.
    """
    to = Path(to)
    to.mkdir(parents=True, exist_ok=True)
    names: dict[str, list[str]] = {"copied": [], "same": [], "kept": []}
    for source in sorted(FOLDER.glob("*.ipynb")):
        content, target = source.read_bytes(), to / source.name
        try:
            with target.open("xb") as file:
                file.write(content)
            names["copied"].append(source.name)
        except FileExistsError:
            names["same" if target.is_file() and target.read_bytes() == content else "kept"].append(source.name)
    return names

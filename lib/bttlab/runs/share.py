"""A run to give away: its record and metrics, its checkpoint if asked for, and no paths of the machine it ran on."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bttlab.model import ModuleConfig
from bttlab.runs.checkpoint import BEST, LATEST, CheckpointStore, pack
from bttlab.runs.metrics import METRICS_FILE, read_lines
from bttlab.runs.module import MODULE_FILE, MODULE_FILES
from bttlab.runs.record import FORMAT, RUN_FILE, read_run
from bttlab.runs.settings import RunSettings
from bttlab.util.errors import BttlabError
from bttlab.util.files import write_folder
from bttlab.util.quantities import to_json
from bttlab.util.reading import MOST_OF_SETTINGS, read_bytes

PLACES = ("data", "recipe", "overlay")  # keys of a configuration whose values may be paths
# Absolute paths of two parts or more, and those below a home, of which the last part is kept.
_PATH = re.compile(r"(?<![\w./])(?:~[\w-]*(?:/[^\s/:;,'\"()]+)+|(?:/[^\s/:;,'\"()]+){2,})")


def share(folders: Iterable[Path], to: Path, parameters: bool = False) -> list[str]:
    """Write runs to a new folder, one below it for each; return a note for each part of them that is left out.

    It has the name of the run's id: ID, and ID-2, ID-3, ... of further runs with that id, such as copies.
    With `parameters` each has its latest checkpoint, with the vocabulary that its word embedding is of, the best one if
    there is one, and a module's files. Raises BttlabError if a run cannot be read, or the folder cannot be made or is
    not empty.
    """
    files: dict[str, bytes] = {}
    notes: list[str] = []
    times: Counter[str] = Counter()  # copies of a run, and equal trials of two sweeps, have one id
    for folder in folders:
        id = read_run(folder).id
        times[id] += 1
        below = id if times[id] == 1 else f"{id}-{times[id]}"
        files |= {f"{below}/{name}": data for name, data in _shared(folder, parameters, notes).items()}
    try:
        write_folder(to, files)
    except OSError as error:
        raise BttlabError(f"{to} cannot be made ({error.strerror}); name a new folder with --share") from None
    return notes


def _shared(folder: Path, parameters: bool, notes: list[str]) -> dict[str, bytes]:
    """Return the files of a run that is given away, by name."""
    record = read_run(folder)
    named = [value for key in PLACES if isinstance(value := record.configuration.get(key), str)]
    known = {str(path.parent) for path in (*map(Path, named), folder.absolute())} | {str(Path.home())}
    places = sorted(known - {".", "/"}, key=len, reverse=True)
    values = _without_paths(asdict(record), places)
    if not parameters:
        values["checkpoint"] = ""
    files = {RUN_FILE: to_json({"format": FORMAT} | values, indent=1).encode() + b"\n"}
    if (folder / METRICS_FILE).exists():
        lines, faults = read_lines(folder / METRICS_FILE)
        notes += [f"{folder}: {fault}" for fault in faults]
        files[METRICS_FILE] = "".join(f"{to_json(_without_paths(line, places))}\n" for line in lines).encode()
    if not parameters:
        return files
    store = CheckpointStore(folder)
    checkpoint, warning = store.load()
    notes += [f"{folder}: {warning}"] if warning else []
    for name, best in ((LATEST, False), (BEST, True)):
        if not best or store.best.exists():
            checkpoint, _ = store.load(best)
            settings = _without_places(checkpoint.settings, checkpoint.corpus.name)
            files[name] = pack(replace(checkpoint, settings=settings, device=_without_paths(checkpoint.device, places)))
    if isinstance(checkpoint.settings.config, ModuleConfig):  # code, as it is: without it the parameters are of no use
        module = [folder / MODULE_FILE, *sorted((folder / MODULE_FILES).rglob("*.py"))]
        files |= {path.relative_to(folder).as_posix(): read_bytes(path, MOST_OF_SETTINGS) for path in module}
    return files


def _without_places(settings: RunSettings, corpus: str) -> RunSettings:
    """Return settings with a corpus and a recipe by name, which another machine may find or not."""
    recipe = settings.recipe if settings.recipe is None else Path(settings.recipe).stem
    return replace(settings, data=corpus, recipe=recipe)


def _without_paths(value: Any, places: Iterable[str]) -> Any:
    """Return a value as JSON has it, with the last part alone of each path in its texts."""
    if isinstance(value, dict):
        return {key: _without_paths(inside, places) for key, inside in value.items()}
    if isinstance(value, list):
        return [_without_paths(inside, places) for inside in value]
    if not isinstance(value, str):
        return value
    for place in places:  # also with blanks in it
        value = value.replace(f"{place}/", "").replace(place, Path(place).name)
    return _PATH.sub(lambda found: found[0].rpartition("/")[2], value)

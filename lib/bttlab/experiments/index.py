"""The index of runs: one SQLite file, in which runs are found wherever their folders lie.

It holds a copy of every run.json. Lost or damaged, it is built anew from the folders.
"""

import difflib
import hashlib
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bttlab.errors import BttlabError
from bttlab.experiments.record import INTERRUPTED, RUN_FILE, RUNNING, RecordError, RunRecord, read_run
from bttlab.locks import is_held
from bttlab.places import ROOT

INDEX = "index.sqlite"
VERSION = 1
DAMAGED = (11, 26)  # SQLITE_CORRUPT and SQLITE_NOTADB, which Python 3.10 has no names for
LARGEST = 2**63 - 1  # of SQLite's whole numbers
BUSY_SECONDS = 30  # that a writer waits for another
_SCHEMA = """
CREATE TABLE runs (
  id TEXT PRIMARY KEY, folder TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, status TEXT NOT NULL,
  begun TEXT NOT NULL, ended TEXT NOT NULL, sweep TEXT NOT NULL, device TEXT NOT NULL, record TEXT NOT NULL);
CREATE INDEX runs_by_begun ON runs (begun);
CREATE INDEX runs_by_sweep ON runs (sweep);
"""
COLUMNS = ("id", "folder", "kind", "name", "status", "begun", "ended", "sweep", "device")
_KEY = re.compile(r"[A-Za-z0-9_.]+")
_CONDITION = re.compile(r"\s*([^=!<>]+?)\s*(<=|>=|!=|=|<|>)\s*(.*?)\s*")


class RunIndexError(BttlabError):
    """An index that cannot be used, or a run that is not in it."""


def runs_folder() -> Path:
    """Return the folder of the index, and of runs that have no other.

    It is $BTTLAB_RUNS; else one of this checkout's own in the user's data folder, so that nobody takes the runs of
    another one's source for those of this.
    """
    if own := os.environ.get("BTTLAB_RUNS"):
        return Path(own).expanduser()
    digest = hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]
    return _all_runs() / f"{ROOT.name}-{digest}"


def every_index() -> list["RunIndex"]:
    """Return this checkout's index, and those of the user's other checkouts."""
    own, folder = RunIndex(), _all_runs()
    others = sorted(path.parent for path in [folder / INDEX, *folder.glob(f"*/{INDEX}")] if path.is_file())
    return [own, *(RunIndex(other) for other in others if other != own.folder)]


def _all_runs() -> Path:
    import platformdirs

    return platformdirs.user_data_path("bttlab") / "runs"


@dataclass(frozen=True)
class Filter:
    """Which runs, in which order.

    Parameters
    ----------
    conditions : sequence of str
        Such as "linear_rank=8", "learning_rate<=0.01", "dev.frame_accuracy>0.9", "kind=training": a key of the
        configuration, a figure or a column, and a value. All must hold.
    sort : str
        A key; the largest, or latest, come first.
    ascending : bool
        The smallest come first.
    limit : int
        At most so many, up to `LARGEST`; 0 for all.
    ids : sequence of str
        Only these.
    """

    conditions: Sequence[str] = ()
    sort: str = "begun"
    ascending: bool = False
    limit: int = 0
    ids: Sequence[str] = ()


@dataclass(frozen=True)
class FoundRun:
    """A run and the folder it lies in."""

    record: RunRecord
    folder: Path


class RunIndex:
    """The index in a folder; made when a run is first added.

    Parameters
    ----------
    folder : path, optional
        By default `runs_folder()`.
    """

    def __init__(self, folder: Path | None = None):
        self.folder = Path(folder or runs_folder())
        self.path = self.folder / INDEX

    def add(self, record: RunRecord, folder: Path) -> None:
        """Put a run in, or its record as it is now."""
        self.add_all([(record, folder)])

    def add_all(self, runs: Iterable[tuple[RunRecord, Path]]) -> None:
        """Put runs in, all or none."""
        marks = ", ".join("?" * (len(COLUMNS) + 1))
        rows = [(*_columns(record, Path(folder)), record.to_json()) for record, folder in runs]
        with self._open(write=True) as database:
            database.executemany(f"INSERT OR REPLACE INTO runs VALUES ({marks})", rows)

    def rebuild(self, folders: Iterable[Path]) -> tuple[int, list[str]]:
        """Build the index anew from the runs in some folders and below them, and in the index's own.

        Returns
        -------
        count : int
            Of runs found.
        faults : list of str
            Records that could not be read.
        """
        runs, faults = {}, []
        for root in [self.folder, *map(Path, folders)]:
            for path in sorted(root.rglob(RUN_FILE)):
                try:
                    record = read_run(path.parent)
                except RecordError as error:
                    faults.append(str(error))
                else:
                    runs[record.id] = (record, path.parent.absolute())
        self._replace_by(runs.values())
        return len(runs), faults

    def _replace_by(self, runs: Iterable[tuple[RunRecord, Path]]) -> None:
        """Put a new index in the place of the one there is, once it is whole."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".index-", dir=self.folder) as name:
            draft = RunIndex(Path(name))
            draft.add_all(runs)
            for suffix in ("-wal", "-shm"):  # what these hold is of the file that goes
                self.path.with_name(INDEX + suffix).unlink(missing_ok=True)
            draft.path.replace(self.path)

    def count(self, chosen: Filter = Filter()) -> int:
        """Return how many runs meet a filter's conditions."""
        with self._open() as database:
            where, values = self._where(database, chosen)
            return database.execute(f"SELECT count(*) FROM runs{where}", values).fetchone()[0]

    def find(self, chosen: Filter = Filter()) -> list[FoundRun]:
        """Return the runs that a filter chooses.

        Raises
        ------
        RunIndexError
            If a condition cannot be read or names a key that no run has, or the index is damaged.
        """
        return [_found(*row) for row in self._select("folder, record", chosen)]

    def rows(self, keys: Sequence[str], chosen: Filter = Filter()) -> list[dict[str, Any]]:
        """Return some values of each chosen run: columns, figures or keys of the configuration; None where it has none.

        Much faster than `find` for many runs. Errors are the same.
        """
        names = ["folder", "status", *keys]
        rows = [dict(zip(names, row, strict=True)) for row in self._select(", ".join(map(_expression, names)), chosen)]
        for row in rows:
            row["status"] = _status(row["status"], Path(row["folder"]))
        return rows

    def keys(self, part: str, chosen: Filter = Filter()) -> dict[str, int]:
        """Return the keys that the chosen runs have, in their order, and how many different values each has.

        Parameters
        ----------
        part : {"configuration", "figures"}
        chosen : Filter
        """
        with self._open() as database:
            where, values = self._where(database, chosen)
            limit = f" ORDER BY {self._order(database, chosen)} LIMIT {chosen.limit}" if chosen.limit else ""
            query = (
                f"WITH chosen AS (SELECT record FROM runs{where}{limit}) "
                "SELECT entry.key, count(DISTINCT entry.value), count(*), (SELECT count(*) FROM chosen) "
                f"FROM chosen, json_each(record, '$.{part}') AS entry GROUP BY entry.key ORDER BY min(entry.id)"
            )
            rows = database.execute(query, values)
            return {key: different + (present < total) for key, different, present, total in rows}

    def get(self, name: str) -> FoundRun:
        """Return one run, by its id or the beginning of it, its name, or its folder.

        Raises
        ------
        RunIndexError
            If there is none, or several.
        """
        if (Path(name) / RUN_FILE).is_file():
            return FoundRun(read_run(Path(name)), Path(name).absolute())
        with self._open() as database:
            query = "SELECT folder, record FROM runs WHERE id = ?1 OR name = ?1 OR substr(id, 1, length(?1)) = ?1"
            rows = database.execute(query, [name]).fetchmany(2)
        if not name or not rows:
            raise RunIndexError(f"no run {name!r}; bttlab runs list shows those there are, by id and name")
        if len(rows) > 1:
            raise RunIndexError(f"several runs are called {name!r}; give more of the id that bttlab runs list shows")
        return _found(*rows[0])

    # --- queries

    def _select(self, columns: str, chosen: Filter) -> list[tuple]:
        with self._open() as database:
            where, values = self._where(database, chosen)
            limit = f" LIMIT {chosen.limit}" if chosen.limit else ""
            order = self._order(database, chosen)
            return database.execute(f"SELECT {columns} FROM runs{where} ORDER BY {order}{limit}", values).fetchall()

    def _order(self, database: sqlite3.Connection, chosen: Filter) -> str:
        self._check_known(database, chosen.sort)
        key, direction = _expression(chosen.sort), "ASC" if chosen.ascending else "DESC"
        if chosen.sort in COLUMNS:
            return f"{key} {direction}, rowid {direction}"
        return f"{key} IS NULL, {key} {direction}, rowid DESC"  # what lacks the figure comes last

    def _where(self, database: sqlite3.Connection, chosen: Filter) -> tuple[str, list[Any]]:
        terms, values = [], []
        for condition in chosen.conditions:
            match = _CONDITION.fullmatch(condition)
            if match is None:
                raise RunIndexError(f"{condition!r} is no condition: give KEY=VALUE, or !=, <, <=, >, >= between them")
            key, operator, text = match.groups()
            self._check_known(database, key)
            terms.append(f"{_expression(key)} {operator} ?")
            values.append(text if key in COLUMNS else _value(text))
        if chosen.ids:
            terms.append(f"id IN ({', '.join('?' * len(chosen.ids))})")
            values += chosen.ids
        return (" WHERE " + " AND ".join(terms) if terms else ""), values

    def _check_known(self, database: sqlite3.Connection, key: str) -> None:
        if key in COLUMNS or database.execute("SELECT 1 FROM runs LIMIT 1").fetchone() is None:
            return
        if _KEY.fullmatch(key):
            some = f"SELECT 1 FROM runs WHERE {_expression(key)} IS NOT NULL LIMIT 1"
            if database.execute(some).fetchone():
                return
        known = {*COLUMNS, *self.keys("configuration"), *self.keys("figures")}
        if key not in known:
            raise RunIndexError(f"no run has {key!r}{nearest(key, known)}")

    # --- the file

    @contextmanager
    def _open(self, write: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection within one transaction."""
        if write:
            self.folder.mkdir(parents=True, exist_ok=True)
        try:
            database = sqlite3.connect(self.path if write or self.path.exists() else ":memory:", timeout=BUSY_SECONDS)
            try:
                self._prepare(database)
                with database:
                    yield database
            finally:
                database.close()
        except sqlite3.OperationalError as error:
            raise RunIndexError(f"{self.path} cannot be used ({error}); set BTTLAB_RUNS to a folder of yours") from None
        except sqlite3.DatabaseError as error:
            plain = type(error) is sqlite3.DatabaseError  # as these are raised; Python 3.10 tells no more
            if getattr(error, "sqlite_errorcode", DAMAGED[0] if plain else None) not in DAMAGED:
                raise RunIndexError(f"{self.path}: {error}") from None
            raise RunIndexError(
                f"{self.path} is damaged ({error}); build it anew with: bttlab runs index FOLDER, naming the folders "
                "that your runs lie in"
            ) from None

    def _prepare(self, database: sqlite3.Connection) -> None:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise RunIndexError(
                f"{self.path} has version {version}, this bttlab reads {VERSION}; use the bttlab that wrote it, or set "
                "BTTLAB_RUNS to another folder"
            )
        if version == 0:
            database.execute("PRAGMA journal_mode = WAL")  # readers and one writer at a time do not wait for each other
            with database:
                database.execute("BEGIN IMMEDIATE")
                if database.execute("PRAGMA user_version").fetchone()[0] == 0:
                    for statement in filter(str.strip, _SCHEMA.split(";")):
                        database.execute(statement)
                    database.execute(f"PRAGMA user_version = {VERSION}")


def nearest(key: str, known: Iterable[str]) -> str:
    """Return "; do you mean …?" with the known keys that are nearest, or nothing."""
    candidates = difflib.get_close_matches(key, known, n=2, cutoff=0.5)
    candidates += sorted(name for name in known if name.split(".")[-1] == key or key in name.split("_"))[:2]
    if candidates:
        return f"; do you mean {' or '.join(dict.fromkeys(candidates))}?"
    return f"; there are: {', '.join(sorted(known))}"


def _columns(record: RunRecord, folder: Path) -> list[str]:
    values = {name: getattr(record, name) for name in COLUMNS if name != "folder"}
    cells = [(values | {"folder": str(folder.absolute())})[name] for name in COLUMNS]
    for value in cells:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RunIndexError(f"{value!r} has bytes that are no UTF-8; rename it") from None
    return cells


def _expression(key: str) -> str:
    """SQL for a column, a figure's value or a value of the configuration."""
    if key in COLUMNS:
        return key
    if not _KEY.fullmatch(key):
        raise RunIndexError(f"{key!r} is no key: keys are made of letters, digits, '_' and '.'")
    figure, setting = f"""'$.figures."{key}".value'""", f"""'$.configuration."{key}"'"""
    return f"coalesce(json_extract(record, {figure}), json_extract(record, {setting}))"


def _value(text: str) -> Any:
    """A number where it is one, else text; lists as JSON has them, such as [12,8,8]."""
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if kind is float or abs(value) <= LARGEST:
            return value
    return text.replace(" ", "") if text.startswith("[") else text


def _found(folder: str, text: str) -> FoundRun:
    run = FoundRun(RunRecord.from_json(text), Path(folder))
    run.record.status = _status(run.record.status, run.folder)
    return run


def _status(status: str, folder: Path) -> str:
    """As recorded; but who died while running could not say so."""
    return INTERRUPTED if status == RUNNING and not is_held(folder) else status

"""The index of runs: a SQLite file that finds runs in any folder.

It has a copy of every run.json, and can be rebuilt from the folders.
"""

import hashlib
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bttlab.runs.record import INTERRUPTED, RUN_FILE, RUNNING, RunRecord, read_run
from bttlab.util.errors import BttlabError
from bttlab.util.json_files import check_tree
from bttlab.util.locks import FolderBusyError, held, is_held
from bttlab.util.places import ROOT
from bttlab.util.records import nearest

INDEX = "index.sqlite"
VERSION = 2
DAMAGED = (11, 26)  # SQLITE_CORRUPT and SQLITE_NOTADB, which Python 3.10 has no names for
LARGEST = 2**63 - 1  # of SQLite's whole numbers
BUSY_SECONDS = 30  # that a writer waits for another
_SCHEMA = """
CREATE TABLE runs (
  id TEXT NOT NULL, folder TEXT PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, status TEXT NOT NULL,
  begun TEXT NOT NULL, ended TEXT NOT NULL, sweep TEXT NOT NULL, device TEXT NOT NULL, record TEXT NOT NULL);
CREATE INDEX runs_by_begun ON runs (begun);
CREATE INDEX runs_by_sweep ON runs (sweep);
"""
COLUMNS = ("id", "folder", "kind", "name", "status", "begun", "ended", "sweep", "device")
_INSERT = f"INSERT OR REPLACE INTO runs VALUES ({', '.join('?' * (len(COLUMNS) + 1))})"
# A record that is no JSON has no values, where SQLite would refuse the whole query.
_RECORD = "CASE WHEN json_valid(record) THEN record END"
_KEY = re.compile(r"[A-Za-z0-9_.]+")
_CONDITION = re.compile(r"\s*([^=!<>]+?)\s*(<=|>=|!=|=|<|>)\s*(.*?)\s*")


class RunIndexError(BttlabError):
    """Raised if the index cannot be used, or a run is not in it."""


class DamagedIndexError(RunIndexError):
    """Raised if SQLite cannot read the file."""


def runs_folder() -> Path:
    """Return the folder of the index, and of runs that have no other.

    It is $BTTLAB_RUNS, or a folder for this checkout in the user's data folder.
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
    """A choice of runs, and their order.

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
    """A run and its folder."""

    record: RunRecord
    folder: Path


class RunIndex:
    """The index in a folder, made when a run is first added. The folder of a run is its key: ids may be copied.

    Parameters
    ----------
    folder : path, optional
        By default `runs_folder()`.

    Attributes
    ----------
    faults : list of str
        Rows that the last `find` or `rows` left out, and why.

    Raises
    ------
    RunIndexError
        If the folder is a file.
    """

    def __init__(self, folder: Path | None = None):
        self.folder = Path(folder or runs_folder())
        self.path = self.folder / INDEX
        self.faults: list[str] = []
        if self.folder.exists() and not self.folder.is_dir():
            raise RunIndexError(f"{self.folder} is no folder; set BTTLAB_RUNS to the folder that your runs lie in")

    def add(self, record: RunRecord, folder: Path) -> None:
        """Add a run, or replace its record."""
        self.add_all([(record, folder)])

    def add_all(self, runs: Iterable[tuple[RunRecord, Path]]) -> None:
        """Add runs, all or none."""
        rows = [_row(record, Path(folder)) for record, folder in runs]
        with self._open(write=True) as database:
            database.executemany(_INSERT, rows)

    def rebuild(self, folders: Iterable[Path]) -> tuple[int, list[str]]:
        """Rebuild the index from the runs in and below some folders and its own.

        Returns
        -------
        count : int
            Of runs found.
        faults : list of str
            Records that could not be read.
        """
        paths = {path.parent.absolute() for root in [self.folder, *map(Path, folders)] for path in root.rglob(RUN_FILE)}
        self._remove_damaged()
        rows, faults = {}, []
        with self._open(write=True) as database:
            database.execute("BEGIN IMMEDIATE")  # runs that end meanwhile wait: none of them is lost
            for folder in sorted(paths):
                try:
                    row = _row(read_run(folder), folder)
                except BttlabError as error:
                    faults.append(str(error))
                else:
                    rows[folder] = row
            database.execute("DELETE FROM runs")
            database.executemany(_INSERT, rows.values())
        return len(rows), faults

    def _remove_damaged(self) -> None:
        """Delete the index if SQLite cannot read it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with held(self.folder):  # else a second process could delete what the first has written since
                try:
                    self.count()
                except DamagedIndexError:
                    for suffix in ("", "-wal", "-shm"):
                        self.path.with_name(INDEX + suffix).unlink(missing_ok=True)
        except FolderBusyError:
            raise RunIndexError(f"another process rebuilds {self.path}; wait for it") from None

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
        self.faults, runs = [], []
        for folder, text in self._select("folder, record", chosen):
            try:
                runs.append(_found(folder, text))
            except BttlabError as error:
                self.faults.append(f"the run in {folder} is left out: {error}")
        return runs

    def rows(self, keys: Sequence[str], chosen: Filter = Filter()) -> list[dict[str, Any]]:
        """Return some values of each chosen run: columns, figures or keys of the configuration, or None.

        Much faster than `find` for many runs. Errors are the same.
        """
        names, self.faults, rows = ["folder", "status", *keys], [], []
        for is_sound, *values in self._select(f"json_valid(record), {', '.join(map(_expression, names))}", chosen):
            row = dict(zip(names, values, strict=True))
            if is_sound:
                rows.append(row | {"status": _status(row["status"], Path(row["folder"]))})
            else:
                self.faults.append(f"the run in {row['folder']} is left out: its record is no JSON")
        return rows

    def keys(self, part: str, chosen: Filter = Filter()) -> dict[str, int]:
        """Return the keys of the chosen runs, in order, with the number of different values.

        Parameters
        ----------
        part : {"configuration", "figures"}
        """
        with self._open() as database:
            where, values = self._where(database, chosen)
            limit = f" ORDER BY {self._order(database, chosen)} LIMIT {chosen.limit}" if chosen.limit else ""
            query = (
                f"WITH chosen AS (SELECT {_RECORD} AS record FROM runs{where}{limit}) "
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
            raise RunIndexError(
                f"several runs are called {name!r}; give more of the id, or the folder: bttlab runs list"
            )
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
        """Open a connection and a transaction."""
        if write:
            self.folder.mkdir(parents=True, exist_ok=True)
        try:
            database = sqlite3.connect(self.path if write or self.path.exists() else ":memory:", timeout=BUSY_SECONDS)
            # A row with text that is no UTF-8 is shown as such; else no query that meets it would return any.
            database.text_factory = lambda data: data.decode(errors="replace")
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
            raise DamagedIndexError(
                f"{self.path} is damaged ({error}); build it again with: bttlab runs index FOLDER, naming the folders "
                "that your runs lie in"
            ) from None

    def _prepare(self, database: sqlite3.Connection) -> None:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise RunIndexError(
                f"{self.path} has version {version}, this bttlab reads {VERSION}; use the bttlab that wrote it, or set "
                "BTTLAB_RUNS to another folder"
            )
        if version < VERSION:
            database.execute("PRAGMA journal_mode = WAL")  # readers and one writer at a time do not wait for each other
            with database:
                database.execute("BEGIN IMMEDIATE")
                (version,) = database.execute("PRAGMA user_version").fetchone()
                if version == VERSION:  # another process was quicker
                    return
                before = database.execute("SELECT * FROM runs").fetchall() if version else []
                for statement in ("DROP TABLE IF EXISTS runs", *filter(str.strip, _SCHEMA.split(";"))):
                    database.execute(statement)
                database.executemany(_INSERT, before)
                database.execute(f"PRAGMA user_version = {VERSION}")


def _row(record: RunRecord, folder: Path) -> list[str]:
    cells = [str(folder.absolute()) if name == "folder" else getattr(record, name) for name in COLUMNS]
    try:
        check_tree(cells)
        text = record.to_json()
        RunRecord.from_json(text)
    except BttlabError as error:
        raise RunIndexError(f"{folder}: its record cannot be indexed: {error}") from None
    return [*cells, text]


def _expression(key: str) -> str:
    """Return SQL for a column, a figure's value or a value of the configuration."""
    if key in COLUMNS:
        return key
    if not _KEY.fullmatch(key):
        raise RunIndexError(f"{key!r} is no key: keys are made of letters, digits, '_' and '.'")
    figure, setting = f"""'$.figures."{key}".value'""", f"""'$.configuration."{key}"'"""
    return f"coalesce(json_extract({_RECORD}, {figure}), json_extract({_RECORD}, {setting}))"


def _value(text: str) -> Any:
    """Return a condition's value: a number, text, or a list as in JSON."""
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
    """Return the recorded status, or "interrupted" for a running one without a process."""
    return INTERRUPTED if status == RUNNING and not is_held(folder) else status

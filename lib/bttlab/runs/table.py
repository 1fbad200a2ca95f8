"""The table of runs: a row for each run.json below some folders.

`runs_folder()` has the runs of dashboards, and `folders.txt`: where else this user's runs are, a folder a line.
"""

import ast
import itertools
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bttlab.runs.record import RUN_FILE, RunRecord, read_run
from bttlab.util.errors import BttlabError
from bttlab.util.files import append_line, write_file
from bttlab.util.settings import nearest

if TYPE_CHECKING:
    import pandas as pd

FOLDERS = "folders.txt"
DEPTHS = ("", "*/", "*/*/", "*/*/*/")  # where below a folder a run may be
COLUMNS = ("id", "kind", "name", "status", "begun", "ended", "sweep", "device", "error")


def runs_folder() -> Path:
    """Return the folder of runs that have no other: $BTTLAB_RUNS, or bttlab/runs in the user's data folder.

    Returns
    -------
    path
        The folder, which need not exist.
    """
    if given := os.environ.get("BTTLAB_RUNS"):
        return Path(given).expanduser()
    import platformdirs

    return platformdirs.user_data_path("bttlab") / "runs"


def add_to_index(*folders: Path) -> None:
    """Let `runs_table` look into further folders, from now on.

    Parameters
    ----------
    *folders : path
        Of runs, or with folders of runs in them.

    Raises
    ------
    OSError
        If the index cannot be written.
    """
    known, new = _indexed(), [str(folder.absolute()) for folder in folders]
    if new := [line for line in dict.fromkeys(new) if Path(line) not in known]:
        path = runs_folder() / FOLDERS
        path.parent.mkdir(parents=True, exist_ok=True)
        append_line(path, "".join(f"{line}\n" for line in new))  # one write: no lock is needed


def remember(*folders: Path) -> None:
    """Let `runs_table` look into further folders: `add_to_index` by its earlier name.

    Parameters
    ----------
    *folders : path
        As for `add_to_index`.
    """
    warnings.warn("remember(folder) is now add_to_index(folder)", FutureWarning, stacklevel=2)
    add_to_index(*folders)


def _indexed() -> list[Path]:
    try:
        text = (runs_folder() / FOLDERS).read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BttlabError(f"{error.filename}: {error.strerror}; BTTLAB_RUNS must name a folder of yours") from None
    return [Path(line) for line in dict.fromkeys(text.splitlines()) if line]


def find_runs(folders: Iterable[Path] | None = None) -> Iterator[Path]:
    """Yield the folders of runs in and below some folders; by default `runs_folder()` and those of the index."""
    places = [runs_folder(), Path("runs"), *_indexed()] if folders is None else folders
    if isinstance(places, str | Path):
        raise TypeError(f"folders is {places!r}: give a list of folders")
    seen = set()
    for place in places:
        for depth in DEPTHS:
            for path in Path(place).absolute().glob(depth + RUN_FILE):
                if path.parent not in seen:
                    seen.add(path.parent)
                    yield path.parent


def runs_table(folders: Iterable[Path] | None = None) -> "pd.DataFrame":
    """Return the table of all runs in some folders, the latest first.

    Parameters
    ----------
    folders : iterable of path, optional
        By default where this user's runs are.

    Returns
    -------
    pd.DataFrame
        A row has the columns of `COLUMNS`, "corpus" (the beginning of its SHA-256), every key of the configuration,
        the value of every figure, and "folder". `attrs["faults"]` has a line for each run.json that cannot be read.
    """
    import pandas as pd  # slow to import

    rows, faults = [], []
    for folder in find_runs(folders):
        try:
            record = read_run(folder)
        except BttlabError as error:
            faults.append(str(error))
        else:
            rows.append(_row(record) | {"folder": str(folder)})
    table = pd.DataFrame(rows, columns=None if rows else [*COLUMNS, "folder"], dtype=object)
    table = pd.DataFrame({name: _typed(table[name]) for name in table.columns})
    table = table.sort_values("begun", ascending=False, kind="stable", ignore_index=True)
    table.attrs["faults"] = faults
    return table


def _typed(column: "pd.Series") -> "pd.Series":
    """Return a column with the type of its values; whole numbers stay exact beside missing values."""
    import pandas as pd

    whole = column.map(lambda value: isinstance(value, int) and not isinstance(value, bool))
    try:
        if whole.any() and (whole | column.isna()).all():  # seeds have up to 63 bits, of which a float keeps 53
            return column.where(whole, pd.NA).astype("Int64")
        return column.convert_dtypes()
    except OverflowError:  # a number of more bits in a record that nobody trained
        return column


def _row(record: RunRecord) -> dict[str, Any]:
    # "samples" is a setting, too: those of an epoch
    named = {"trained_samples" if name == "samples" else name: figure for name, figure in record.figures.items()}
    figures = {name: figure["value"] for name, figure in named.items()}
    columns = {name: getattr(record, name) for name in COLUMNS} | {"corpus": record.corpus.get("sha256", "")[:12]}
    return columns | {k: v for k, v in (record.configuration | figures).items() if k not in columns}


def to_csv(table: "pd.DataFrame", path: Path) -> None:
    """Write the rows of `runs_table`; a text that a spreadsheet would take for a formula gets an apostrophe."""

    def cell(value: Any) -> Any:
        return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value

    write_file(path, table.astype(object).map(cell).to_csv(index=False), "--csv")


def where(table: "pd.DataFrame", condition: str) -> "pd.DataFrame":
    """Return the rows that meet a condition of `DataFrame.query`; a key with a point needs no backticks.

    Raises BttlabError if the condition cannot be read, names a key that no run has, or compares one with a value of
    another type.
    """
    if table.empty:
        return table
    from pandas.api.types import is_bool_dtype

    names = "|".join(re.escape(name) for name in sorted(map(str, table.columns), key=len, reverse=True) if "." in name)
    texts = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""  # a name in a text is no key
    pattern = rf"({texts})|(?<![\w.`])({names})(?![\w`])"
    quoted = re.sub(pattern, lambda found: found[1] or f"`{found[2]}`", condition) if names else condition
    _check_types(table, quoted, texts)
    try:
        met = table.eval(quoted, engine="python")
    except Exception as error:  # the parser's, the evaluation's: a condition is an expression of Python
        unknown = re.search(r"name '(.+?)' is not defined", str(error))
        if unknown:
            name = unknown[1].removeprefix("BACKTICK_QUOTED_STRING_")
            hint = nearest(name, map(str, table.columns))
            raise BttlabError(f"no run has {name} (a text needs quotes: '{name}'){hint}") from None
        raise BttlabError(
            f"condition {condition!r}: {str(error).splitlines()[0]}; give a condition such as linear_rank == 12 and "
            "dev.slot_f1 > 0.9"
        ) from None
    if not is_bool_dtype(getattr(met, "dtype", None)):  # of texts it may be Arrow's
        raise BttlabError(f"{condition!r} is no condition; give a condition such as linear_rank == 12")
    return table.loc[met.fillna(False).astype(bool), :]


def _check_types(table: "pd.DataFrame", condition: str, texts: str) -> None:
    """Refuse comparisons of a key with a value that it cannot have: pandas meets none of them, and `!=` always.

    `condition` has names with a point in backticks; `texts` is the pattern of texts in it.
    """
    quoted: list[str] = []  # names in backticks, which Python does not have

    def plain(found: re.Match) -> str:
        if found[1]:
            return found[1]
        if found[2]:
            quoted.append(found[2])
            return f"_quoted_{len(quoted) - 1}"
        return " and " if found[3] == "&" else " or "  # as pandas reads them

    try:
        tree = ast.parse(re.sub(rf"({texts})|`([^`]+)`|([&|])", plain, condition).strip(), mode="eval")
    except (SyntaxError, ValueError):  # pandas says what is wrong
        return
    for node in ast.walk(tree):
        operands = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        for pair in itertools.pairwise(operands):
            for name, given in (pair, pair[::-1]):
                if isinstance(name, ast.Name):
                    index = name.id.removeprefix("_quoted_")
                    key = quoted[int(index)] if index != name.id and index.isdigit() else name.id
                    if key in table.columns:
                        _check_comparison(key, table[key].dropna(), given)


def _check_comparison(key: str, values: "pd.Series", given: ast.expr) -> None:
    try:
        value = ast.literal_eval(given)
    except (ValueError, TypeError):  # another key, or an expression
        return
    if value is None:
        raise BttlabError(f"{key} is compared with None, which no run meets; write {key}.isna() or {key}.notna()")
    if any(isinstance(one, list) for one in values):
        raise BttlabError(
            f"{key} has lists, and is compared with {value!r}; write the list as a text: "
            f"{key}.astype('str') == '[12, 8, 8]'"
        )
    has_text = any(isinstance(one, str) for one in values)
    for one in value if isinstance(value, list | tuple | set) else [value]:
        if isinstance(one, str) and len(values) and not has_text:
            example = values.iloc[0]
            raise BttlabError(
                f"{key} is not a text, and is compared with {one!r}; write it without quotes, as {example}"
            )
        if isinstance(one, int | float) and has_text and all(isinstance(other, str) for other in values):
            raise BttlabError(f"{key} is a text, and is compared with {one!r}; write '{one}', in quotes")


def find_run(name: str, table: "pd.DataFrame | None" = None) -> Path:
    """Return the folder of one run.

    Parameters
    ----------
    name : str
        Its id or the beginning of it, its name, or its folder.
    table : pd.DataFrame, optional
        Of `runs_table`, by default that of all runs.

    Returns
    -------
    path
        The folder.

    Raises
    ------
    BttlabError
        If no run or several runs fit.
    """
    if (Path(name) / RUN_FILE).is_file():
        return Path(name).absolute()
    table = runs_table() if table is None else table
    found = table[(table["name"] == name) | table["id"].astype(str).str.startswith(name)]
    if not name or found.empty:
        raise BttlabError(f"no run {name!r}; bttlab runs list shows all runs, by id and name")
    if len(found) > 1:
        folders = ", ".join(found["folder"][:3])
        raise BttlabError(f"several runs are called {name!r}: {folders}; give more of the id, or the folder")
    return Path(found.iloc[0]["folder"])

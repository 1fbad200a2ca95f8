"""Rows and values of tables and JSON, with their places."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bttlab.util import reading
from bttlab.util.reading import read_text

from ..corpus import CorpusError
from .account import Account, FileFormat, Row

_SURROGATE = re.compile("[\ud800-\udfff]")


TABLE = FileFormat(
    "a table",
    (".csv", ".tsv"),
    accepted='the first line names the columns; fields in quotation marks, `""` for a quotation mark; empty lines',
    refused="another number of fields than of columns; columns that semicolons separate; two columns of one name, or "
    "two with values and no name; a quotation mark that joins rows, or has a blank before it",
)
JSON = FileFormat(
    "JSON",
    (".jsonl", ".json"),
    accepted="an object in each line (`.jsonl`), or a list of objects at the place of a format above (`.json`)",
    refused="a key twice in an object; NaN; half a surrogate pair; an object in each line of a `.json` file",
)
PARQUET = FileFormat(
    "parquet",
    (".parquet",),
    accepted="the names of a ClassLabel, as `datasets` of Hugging Face writes them beside",
    refused="numbers of labels without names",
)


def table_rows(path: Path, account: Account) -> Iterator[Row]:
    """Yield the rows of a table: tabs separate the columns of a .tsv file, commas those of others."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    lines = list(io.StringIO(read_text(path, CorpusError), newline=""))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    columns: list[str] = []
    first = 1  # line of the row
    nameless: int | None = None  # place of the column without a name that has values
    try:
        for row in reader:
            where, begin, first = f"{path}, line {first}", first, reader.line_num + 1
            if not row:
                account.skipped["empty"] += 1
                continue
            if not columns:
                columns = [name.strip() for name in row]
                _check_header(where, columns, delimiter)
                continue
            if len(row) != len(columns):
                raise CorpusError(
                    f"{where}: {len(row)} fields, but {len(columns)} columns ({', '.join(columns)}); put a field that "
                    f"contains {'a tab' if delimiter == chr(9) else 'a comma'} in quotation marks"
                )
            rows = lines[begin - 1 : reader.line_num]
            if len(rows) > 1 and all(line.count(delimiter) == len(columns) - 1 for line in rows):
                raise CorpusError(
                    f"{where}: a quotation mark joins lines {begin} to {reader.line_num}, each of which looks like a "
                    'row; write "" for a quotation mark, and the text in one line'
                )
            _check_quotation(where, row, rows, delimiter)
            for place, (name, value) in enumerate(zip(columns, row, strict=True)):
                if not name and value.strip():
                    nameless = place if nameless is None else nameless
                    if nameless != place:
                        raise CorpusError(
                            f"{where}: columns {nameless + 1} and {place + 1} have values and no name; name them in "
                            "the first line"
                        )
            values = dict(zip(columns, row, strict=True))
            yield Row(where, values if nameless is None else values | {"": row[nameless]})
    except csv.Error as error:
        raise CorpusError(f"{path}, line {first}: not a row of a table ({error})") from None


def _check_header(where: str, columns: list[str], delimiter: str) -> None:
    if twice := [name for name, count in Counter(columns).items() if name and count > 1]:
        raise CorpusError(f"{where}: two columns are named {twice[0]!r}; rename one")
    if len(columns) == 1 and (separator := next((c for c in ";\t|," if c in columns[0]), None)):
        right = "tabs" if delimiter == "\t" else "commas"
        raise CorpusError(f"{where}: {separator!r} separates the columns; save the table with {right}")


def _check_quotation(where: str, row: list[str], lines: list[str], delimiter: str) -> None:
    """Refuse a field with a blank before its quotation mark, which would make the mark a part of the value."""
    if '"' not in "".join(row):
        return
    try:
        (other,) = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)
    except (csv.Error, ValueError):
        other = []
    for field, without in zip(row, other or row, strict=True):
        if field.lstrip(" ") != without.lstrip(" "):
            raise CorpusError(f"{where}: a blank before the quotation mark of {field!r}; remove the blank")


def parse_json(where: str, text: str) -> Any:
    """Return the value of JSON; CorpusError if it is none, has a key twice, NaN, or half a character."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(row := dict(pairs)) != len(pairs):
            raise ValueError("a key occurs twice")
        return row

    try:
        value = reading.parse_json(text, unique)
        if "NaN" in text or "Infinity" in text:
            json.dumps(value, allow_nan=False)
    except ValueError as error:
        way_out = "; for an object in each line, name the file .jsonl" if "Extra data: line 2" in str(error) else ""
        raise CorpusError(f"{where}: it is not valid JSON ({error}){way_out}") from None
    if "\\ud" in text.lower() and (half := _SURROGATE.search(json.dumps(value, ensure_ascii=False))):
        raise CorpusError(f"{where}: half a character, {half[0]!a} (a cut surrogate pair); correct it")
    return value


def json_lines(path: Path, account: Account) -> Iterator[tuple[str, Any]]:
    """Yield the values of a .jsonl file, with their places."""
    lines = read_text(path, CorpusError).split("\n")
    account.skipped["empty"] += sum(not line.strip() for line in lines[:-1])
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{path}, line {number}", parse_json(f"{path}, line {number}", line)


def parquet_rows(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of a parquet file, and the features that `datasets` of Hugging Face writes beside them."""
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(pyarrow.BufferReader(reading.read_bytes(path)))
        about = reading.parse_json((table.schema.metadata or {}).get(b"huggingface", b"{}"))
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise CorpusError(f"{path} cannot be read as parquet ({str(error)[:80]})") from None
    return table.to_pylist(), about.get("info", {}).get("features") or {}

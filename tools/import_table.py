"""Write the tables of docs/import.md from the readers: formats, forms of spans."""

from pathlib import Path

from bttlab.data.importing import SUFFIXES
from bttlab.data.readers.formats import READERS, USUAL, Reader
from bttlab.data.readers.spans import FORMS, SpanForm

PAGE = Path(__file__).parent.parent / "docs" / "import.md"
MARKS = "<!-- readers -->\n", "<!-- end -->\n"


def tables() -> str:
    """Return both tables in Markdown."""
    rows = ["| format in JSON, a table or parquet | told by | read | not used |", "|---|---|---|---|"]
    seen: dict[str, list[Reader]] = {}
    for reader in READERS:
        seen.setdefault(reader.title, []).append(reader)
    for title, readers in seen.items():
        rows.append(f"| {title} | {_told_by(readers)} | {_read(readers)} | {_unused(readers[0])} |")
    rows += ["", "| span | keys | the end is | compared with the text | not used |", "|---|---|---|---|---|"]
    rows.append("| doccano, spaCy | `[start, end, label]` | after its last character | | |")
    rows += [_span_row(form) for form in FORMS]
    return "\n".join([*rows, "", f"Suffixes, in upper or lower case: {_code(SUFFIXES)}.", ""])


def _code(names) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _told_by(readers: list[Reader]) -> str:
    if readers[0].at:
        return f"the list at `{readers[0].at}`"
    keys = [_code(name for name in reader.needs if not name.startswith("is ")) for reader in readers]
    return " or ".join(filter(None, keys)) or "none of the others"


def _read(readers: list[Reader]) -> str:
    example = " ".join(reader.example for reader in readers if reader.example)
    columns = "columns as above" if readers[0].columns is USUAL and readers[0].needs else _code(readers[0].columns)
    return f"{columns}: {example}"


def _unused(reader: Reader) -> str:
    names = [*reader.unused, *reader.beside]
    return _code(names) if len(names) <= 6 else f"{_code(names[:6])}, and {len(names) - 6} more"


def _span_row(form: SpanForm) -> str:
    ends = {"end": "after its last character", "last": "its last character", "length": "a length"}
    compared = _code(filter(None, (form.text, form.value)))
    keys = _code((form.start, form.end, form.label))
    return f"| {form.title} | {keys} | {ends[form.counts]} | {compared} | {_code(form.unused)} |"


def page(text: str) -> str:
    """Return the page's text with the tables of now."""
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return f"{before}{MARKS[0]}{tables()}{MARKS[1]}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

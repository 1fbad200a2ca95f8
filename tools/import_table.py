"""Write the tables of docs/import.md from the readers: formats, forms of spans, controls of Label Studio, files."""

from collections.abc import Mapping
from pathlib import Path

from bttlab.data.importing import FILE_FORMATS, SUFFIXES
from bttlab.data.readers import label_studio
from bttlab.data.readers.account import FileFormat
from bttlab.data.readers.formats import READERS, USUAL, Reader
from bttlab.data.readers.spans import FORMS, SpanForm

PAGE = Path(__file__).parent.parent / "docs" / "import.md"
END = "<!-- end -->\n"


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
    return "\n".join([*rows, ""])


def controls() -> str:
    """Return the table of Label Studio's controls in Markdown."""
    fate = {
        label_studio.SPANS: "read",
        label_studio.CHOICES: "read",
        label_studio.VALUE: "not used, or read",
        label_studio.NOTE: "not used",
        label_studio.OTHER: "refused without `--ignore`",
    }
    rows = ["| control | its results | import |", "|---|---|---|"]
    by_what: dict[tuple[str, str], list[label_studio.Control]] = {}
    for control in label_studio.CONTROLS:
        by_what.setdefault((fate[control.role], control.what), []).append(control)
    for (what_becomes, what), same in by_what.items():
        names = ", ".join(tag for control in same for tag in control.tags)
        rows.append(f"| {names} | {what} | {what_becomes} |")
    return "\n".join([*rows, ""])


def files() -> str:
    """Return the table of kinds of files in Markdown."""
    rows = ["| file | read | accepted | not used | refused |", "|---|---|---|---|---|"]
    rows += [_file_row(form) for form in FILE_FORMATS]
    return "\n".join([*rows, "", f"Suffixes, in upper or lower case: {_code(SUFFIXES)}.", ""])


def _file_row(form: FileFormat) -> str:
    told = f"begins with `{form.begins}`" * bool(form.begins)
    name = ": ".join(filter(None, [form.title, ", ".join(filter(None, [_code(form.suffixes), told]))]))
    read = _by_meaning(form.used) or "rows of the formats above"
    unused = _by_meaning(form.unused)
    return f"| {name} | {read} | {form.accepted} | {unused} | {form.refused} |"


def _by_meaning(keys: Mapping[str, str]) -> str:
    found: dict[str, list[str]] = {}
    for key, what in keys.items():
        found.setdefault(what, []).extend([_mark(key)] * bool(key))
    return "; ".join(f"{', '.join(marks)} ({what})" for what, marks in found.items() if marks)


def _mark(key: str) -> str:
    """Return a key as code, unless it is a description."""
    return key if " " in key and key != "Sentence #" else f"`{key}`"


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
    for name, table in (("readers", tables), ("controls", controls), ("files", files)):
        mark = f"<!-- {name} -->\n"
        before, found, rest = text.partition(mark)
        if not found:
            raise SystemExit(f"{PAGE} has no {mark.strip()}")
        text = f"{before}{mark}{table()}{END}{rest.partition(END)[2]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

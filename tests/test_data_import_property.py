"""Whatever happens to a file of a tool, its import gives the utterances that were written, or is refused."""

import copy
import json
import re
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from annotation_writers import JSON_WRITERS, OTHER_WRITERS, TEXT_WRITERS, JsonWriter, Utterance, murmur_64a
from bttlab.data import CorpusError
from bttlab.data.importing import FILE_FORMATS, read_utterances
from bttlab.data.readers.formats import READERS

WORDS = ["fly", "to", "new", "york", "lima", "zürich", "22", "🙂🙂", "on", "may"]
MANY = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def an_utterance(draw):
    words = draw(st.lists(st.sampled_from(WORDS), min_size=2, max_size=6))
    tags = []
    while len(tags) < len(words):
        kind = draw(st.sampled_from(["", "", "city", "date"]))
        length = min(draw(st.integers(1, 2)), len(words) - len(tags))
        tags += [f"B-{kind}", *[f"I-{kind}"] * (length - 1)] if kind else ["O"]
    return Utterance(tuple(words), tuple(tags), draw(st.sampled_from("xy")))


def corpora():
    """Utterances of which some have labels: else a tool's file has none, or one column less."""
    some = st.lists(an_utterance(), min_size=2, max_size=4)
    return some.filter(lambda found: any(set(u.tags) != {"O"} for u in found))


def expected(utterances, has_intents=True):
    return [(list(u.words), list(u.tags), u.intent if has_intents else "none") for u in utterances]


def imported(path, content):
    """The utterances of a file, or None if it is refused."""
    path.write_text(content, encoding="utf-8")
    try:
        split, _ = read_utterances(path)
    except CorpusError:
        return None
    return [*zip(split.words, split.slots, split.intents, strict=True)]


def written(path, content):
    """Write a file, or the files of a folder, for the first time or again."""
    if isinstance(content, dict):
        for name, text in content.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text, encoding="utf-8")
    else:
        path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", OTHER_WRITERS)
@MANY
@given(utterances=corpora())
def test_what_is_written_in_other_files_is_read(tmp_path, name, utterances):
    if name.endswith((".parquet", ".spacy")):
        pytest.importorskip({"a.parquet": "pyarrow", "a.spacy": "msgpack"}[name])
    if (tmp_path / name).is_dir():
        shutil.rmtree(tmp_path / name)
    split, _ = read_utterances(written(tmp_path / name, OTHER_WRITERS[name](utterances)))
    found = [*zip(split.words, split.slots, split.intents, strict=True)]
    rows = expected(utterances, has_intents=name != "brat")
    if name == "texts":  # in the order of the folders, and without tags
        rows = sorted(([words, ["O"] * len(words), intent] for words, _, intent in rows), key=lambda row: row[2])
    assert found == [tuple(row) for row in rows]


def test_the_writers_number_of_a_string_is_spacys():
    """Numbers that spaCy 3.8 gives in its documentation of the StringStore."""
    assert murmur_64a(b"coffee") == 3197928453018144401


def test_each_format_has_a_writer(tmp_path):
    """Of every declared format a file is written here, and no other reader takes it."""
    utterances = [
        Utterance(("fly", "to", "lima"), ("O", "O", "B-city"), "x"),
        Utterance(("on", "may", "22"), ("O", "B-date", "I-date"), "y"),
    ]
    files = {writer.name: writer.content([writer.row(u) for u in utterances]).encode() for writer in JSON_WRITERS}
    files |= {name: write(utterances).encode() for name, (write, _) in TEXT_WRITERS.items()}
    files |= {name: write(utterances) for name, write in OTHER_WRITERS.items()}
    read = [read_utterances(written(tmp_path / name, content))[1].reader for name, content in files.items()]
    assert {reader.title for reader in READERS} <= set(read)
    assert [form.title for form in FILE_FORMATS if not any(one.startswith(form.title) for one in read)] == ["JSON"]


def may_be_utf_16(utterances):
    """Whether the offsets of spans may count UTF-16 units: where they do not prove the opposite, the import asks."""
    return any("🙂🙂" in u.words for u in utterances)


@pytest.mark.parametrize("writer", JSON_WRITERS, ids=lambda writer: writer.name)
@MANY
@given(utterances=corpora())
def test_what_a_tool_writes_is_read(tmp_path, writer, utterances):
    found = imported(tmp_path / writer.name, writer.content([writer.row(u) for u in utterances]))
    assert found == expected(utterances, writer.has_intents) or (found is None and may_be_utf_16(utterances))


@pytest.mark.parametrize("name", TEXT_WRITERS)
@MANY
@given(utterances=corpora())
def test_what_is_written_in_lines_is_read(tmp_path, name, utterances):
    write, has_intents = TEXT_WRITERS[name]
    assert imported(tmp_path / name, write(utterances)) == expected(utterances, has_intents)


def changed_rows(draw, writer: JsonWriter, rows: list, utterances: list[Utterance]):
    """Rows with one of the changes that tools, scripts and hands make to them."""
    row = draw(st.sampled_from(range(len(rows))))
    target = rows[row]
    keys = [key for key in target if key not in writer.optional] if isinstance(target, dict) else []
    spans = target.get(writer.spans) if writer.spans and isinstance(target, dict) else None
    kinds = ["a column more"] * bool(keys) + ["a key less"] * bool(keys) + ["a span's key"] * 3 * bool(spans)
    kinds += ["utf-16"] * 2 * bool(writer.spans)
    kind = draw(st.sampled_from(kinds)) if kinds else "nothing"
    if kind == "a column more":
        words = len(utterances[row].words)
        more = draw(
            st.sampled_from([3, "note", None, [[0, 2, "z"]], ["O"] * words, [{"start": 0}], " ".join(["B-z"] * words)])
        )
        name = draw(st.sampled_from(["extra", "ner_tags", "spans2", "meta2"]))
        for other in rows:
            other[name] = copy.deepcopy(more)
    elif kind == "a key less":
        del target[draw(st.sampled_from(keys))]
    elif kind == "a span's key":
        span = draw(st.sampled_from(spans))
        names = sorted(span)
        first, second = draw(st.permutations(names))[:2]
        what = draw(st.sampled_from(["swap", "drop", "rename"]))
        if what == "swap" and {first, second} == {"offset", "length"}:
            return "nothing"  # CLU has no copy of the text: 4 and 7 in place of 7 and 4 is another valid span
        if what == "swap":
            span[first], span[second] = span[second], span[first]
        else:
            value = span.pop(first)
            if what == "rename":
                span[f"{first}_"] = value
    elif kind == "utf-16":
        for other, u in zip(rows, utterances, strict=True):
            for span in other.get(writer.spans) or ():
                a, b = span[writer.start], span[writer.end]
                end = {"length": a + b, "endPos": b + 1, "endCharIndex": b + 1}.get(writer.end, b)
                start, stop = (len(u.text[:place].encode("utf-16-le")) // 2 for place in (a, end))
                span[writer.start] = start
                span[writer.end] = {"length": stop - start, "endPos": stop - 1, "endCharIndex": stop - 1}.get(
                    writer.end, stop
                )
    return kind


@pytest.mark.parametrize("writer", JSON_WRITERS, ids=lambda writer: writer.name)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(utterances=corpora(), data=st.data())
def test_a_changed_file_gives_the_same_utterances_or_none(tmp_path, writer, utterances, data):
    rows = [json.loads(json.dumps(writer.row(u))) for u in utterances]
    keys = {key for row in rows if isinstance(row, dict) for key in row}
    changed_rows(data.draw, writer, rows, utterances)
    assert imported(tmp_path / writer.name, writer.content(rows)) in (None, expected(utterances, writer.has_intents))
    try:
        _, account = read_utterances(tmp_path / writer.name)
    except CorpusError:
        return
    more = {key for row in rows if isinstance(row, dict) for key in row} - keys
    assert more <= {*account.used, *account.unused}  # what was added is named


@pytest.mark.parametrize("name", [name for name in TEXT_WRITERS if name.endswith((".conll", ".conllup"))])
@MANY
@given(utterances=corpora(), data=st.data())
def test_changed_columns_give_the_same_utterances_or_none(tmp_path, name, utterances, data):
    write, has_intents = TEXT_WRITERS[name]
    lines = write(utterances).split("\n")
    words = [place for place, line in enumerate(lines) if line and not line.startswith(("#", "-DOC"))]
    separator = " " if " " in lines[words[0]] else "\t"
    count = len(lines[words[0]].split(separator))
    kind = data.draw(st.sampled_from(["swap", "again", "a field less", "a note", "a tag more"]))
    first, second = data.draw(st.permutations(range(count)))[:2]
    one = data.draw(st.sampled_from(words))
    for place in [one] if kind == "a field less" else words:
        fields = lines[place].split(separator)
        if kind == "swap":
            fields[first], fields[second] = fields[second], fields[first]
        elif kind == "again":  # such as a prediction behind the gold tag
            fields.append(fields[-1])
        elif kind == "a field less":
            del fields[first]
        elif kind == "a note":
            fields.insert(1, "NOUN")
        else:
            fields.insert(count - 1, "B-z")
        lines[place] = separator.join(fields)
    found = imported(tmp_path / name, "\n".join(lines))
    same = expected(utterances, has_intents)
    assert found in (None, same)
    if kind in ("again", "a tag more"):
        assert found is None


@MANY
@given(utterances=corpora(), order=st.permutations(range(3)), data=st.data())
def test_columns_of_a_table_in_another_order_are_the_same(tmp_path, utterances, order, data):
    lines = [line.split(",") for line in TEXT_WRITERS["a.csv"][0](utterances).splitlines()]
    table = "".join(f"{','.join(line[place] for place in order)}\n" for line in lines)
    assert imported(tmp_path / "a.csv", table) == expected(utterances)
    names = lines[0]
    wrong = data.draw(st.permutations(names))
    renamed = imported(tmp_path / "b.csv", "".join(f"{','.join(line)}\n" for line in [wrong, *lines[1:]]))
    if wrong.index("tags") != names.index("tags"):  # text for intent and back cannot be told: both are text
        assert renamed is None


@MANY
@given(utterances=corpora(), place=st.integers(1, 3))
def test_a_token_that_is_not_in_the_text_of_webanno_is_refused(tmp_path, utterances, place):
    content = TEXT_WRITERS["webanno.tsv"][0](utterances)
    shifted = re.sub(
        r"^(\d+-2\t)(\d+)-(\d+)", lambda m: f"{m[1]}{int(m[2]) + place}-{int(m[3]) + place}", content, flags=re.M
    )
    assert imported(tmp_path / "a.tsv", shifted) is None

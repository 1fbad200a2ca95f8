"""Corpora from other formats: `bttlab data import`."""

import json

import pytest

from bttlab.cli import main
from bttlab.data import load_corpus, read_corpus
from command_line import refused, run_json

from conftest import ROOT


def imported(capsys, *arguments):
    return run_json(capsys, "data", "import", *arguments)


def test_json_lines_and_back(tmp_path, capsys):
    """The utterances of a corpus, written as JSON lines and imported, are the corpus."""
    airline = load_corpus("airline")
    for name in ("train", "dev", "test"):
        split = airline.split(name)
        rows = zip(split.words, split.slots, split.intents, strict=True)
        lines = [json.dumps({"said": words, "tags": " ".join(tags), "wants": intent}) for words, tags, intent in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    parts = ["--dev", tmp_path / "dev.jsonl", "--test", tmp_path / "test.jsonl"]
    columns = ["--text", "said", "--label", "wants", "--tags", "tags"]
    found = imported(capsys, tmp_path / "train.jsonl", tmp_path / "made", *parts, *columns)
    made = read_corpus(tmp_path / "made")
    assert [made.split(name) for name in ("train", "dev", "test")] == [airline.train, airline.dev, airline.test]
    assert found["utterances"] == {"train": 4478, "dev": 500, "test": 893}
    assert sum(intent["utterances"] for intent in found["intents"]) == 4478


CONLL = "# intent: flight\nfly O\nto O\nlima B-city\n\n# intent: music\nplay O\njazz B-genre\n\n"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("other.csv", "text,label\nfly to quito,flight\nplay rock,music\n", "other.csv has no tags, and"),
        ("other.conll", "fly O\nto O\nquito B-city\n\nplay O\nrock B-genre\n\n", "other.conll has no intents, and"),
    ],
)
@pytest.mark.parametrize("split", ["dev", "test"])
@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=str)
def test_splits_without_the_labels_of_the_others_are_refused(tmp_path, capsys, split, name, content, said, more):
    (tmp_path / "train.conll").write_text(CONLL * 4)
    (tmp_path / name).write_text(content)
    of_train = [tmp_path / "train.conll", tmp_path / "made", f"--{split}", tmp_path / name]
    assert said in refused(capsys, "data", "import", *of_train, *more)
    turned = [tmp_path / name, tmp_path / "made", f"--{split}", tmp_path / "train.conll"]
    assert said in refused(capsys, "data", "import", *turned, *more)
    assert not (tmp_path / "made").exists()


def test_labels_that_train_lacks_and_the_reader_of_each_file_are_told(tmp_path, capsys):
    (tmp_path / "train.conll").write_text(CONLL * 4)
    (tmp_path / "dev.conll").write_text(CONLL)
    (tmp_path / "test.conll").write_text("# intent: dining\neat O\nin O\nrome B-stad\n\n")
    parts = ["--dev", str(tmp_path / "dev.conll"), "--test", str(tmp_path / "test.conll")]
    assert main(["data", "import", str(tmp_path / "train.conll"), str(tmp_path / "made"), *parts]) == 0
    told = capsys.readouterr().out
    assert "labels of test that train lacks, so no model predicts them: intent dining, slot stad" in told
    assert "labels of dev" not in told
    assert all(f"{name}.conll: read as CoNLL" in told for name in ("train", "dev", "test"))


def test_a_table_of_classes(tmp_path, capsys):
    lines = [f'"Please, cancel order {n}!",stop it' if n % 3 else f"Where is {n}?,track" for n in range(40)]
    (tmp_path / "asked.csv").write_text("question,team\n" + "\n".join(lines))
    found = imported(capsys, tmp_path / "asked.csv", tmp_path / "a", "--text", "question", "--label", "team")
    corpus = read_corpus(tmp_path / "a")
    assert found["utterances"] == {"train": 32, "dev": 4, "test": 4} and corpus.intent_labels == [
        "UNK",
        "stop_it",
        "track",
    ]
    assert {words[0] for words in corpus.train.words} == {"please", "where"} and found["longest"] == 4
    assert all(word.strip(",!?") == word for words in corpus.train.words for word in words)
    assert {tag for tags in corpus.train.slots for tag in tags} == {"O"}
    again, other = (tmp_path / name for name in ("b", "c"))
    imported(capsys, tmp_path / "asked.csv", again, "--text", "question", "--label", "team")
    imported(capsys, tmp_path / "asked.csv", other, "--text", "question", "--label", "team", "--seed", "1")
    assert read_corpus(again).dev == corpus.dev != read_corpus(other).dev
    out = str(tmp_path / "run")
    assert main(["train", "--data", str(tmp_path / "a"), "--device", "reference", "--samples", "2", "--out", out]) == 0
    assert main(["predict", "Please? cancel", "--run", out]) == 0
    assert "unknown" not in capsys.readouterr().out


def test_a_folder_of_texts_with_more_classes_than_the_usual_model(tmp_path, capsys):
    for label in range(30):
        for number in range(3):
            path = tmp_path / "texts" / f"class{label}" / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"about {label}\n" * (20 if label == 0 else 1))
    found = imported(capsys, tmp_path / "texts", tmp_path / "made")
    assert found["too_long"] == 3 and found["also_in_train"]["dev"] > 0
    (tmp_path / "model.toml").write_text("intents = 31\n")
    train = ["train", "--data", str(tmp_path / "made"), "--device", "reference", "--samples", "1"]
    assert "intents = 31 into a file for --model" in refused(capsys, *train, "--out", tmp_path / "run")
    assert main([*train, "--out", str(tmp_path / "run"), "--model", str(tmp_path / "model.toml")]) == 0


def rows_of(folder):
    """Return the utterances of a corpus: intent by words with tags."""
    corpus = read_corpus(folder)
    splits = [corpus.train, corpus.dev, corpus.test]
    rows = [row for split in splits for row in zip(split.words, split.slots, split.intents, strict=True)]
    return {" ".join(f"{w}/{t}" for w, t in zip(words, tags, strict=True)): intent for words, tags, intent in rows}


DOCCANO = {"text": "Fly to New York, please!", "label": [[7, 15, "to city"]]}
RELATIONS = {"text": DOCCANO["text"], "label": [{"id": 1, "start_offset": 7, "end_offset": 16, "label": "to city"}]}
STUDIO = {"start": 7, "end": 15, "text": "New York", "labels": ["to city"]}
TASK = {
    "data": {"text": DOCCANO["text"]},
    "annotations": [
        {
            "result": [
                {"from_name": "label", "type": "labels", "value": STUDIO},
                {"from_name": "kind", "type": "choices", "value": {"choices": ["trip", "wish"]}},
                {"type": "relation"},
            ]
        }
    ],
}
SKIPPED = {"data": TASK["data"], "annotations": [{"result": [], "was_cancelled": True}]}


WORDS = "from north bay lima to quito"
SCHEMES = {
    "IOB1": "O I-from.city I-from.city B-from.city O I-to.city",
    "IOB2": "O B-from.city I-from.city B-from.city O B-to.city",
    "BIOES": "O B-from.city E-from.city S-from.city O S-to.city",
    "BILOU": "O B-from.city L-from.city U-from.city O U-to.city",
    "BMEWO": "O B-from.city E-from.city W-from.city O W-to.city",
    "lower case": "o b-from.city i-from.city b-from.city 0 b-to.city",
    "zero": "0 B-from.city I-from.city B-from.city 0 B-to.city",
    "suffix": "O from.city-B from.city-I from.city-B O to.city-B",
    "underscore": "O B_from.city I_from.city B_from.city O B_to.city",
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes_of_tags_become_bio(tmp_path, capsys, scheme):
    pairs = zip(WORDS.split(), SCHEMES[scheme].split(), strict=True)
    block = "".join(f"{word} {tag}\n" for word, tag in pairs)
    cities = "from/O north/B-from.city bay/I-from.city lima/B-from.city to/O quito/B-to.city"
    assert read(tmp_path, capsys, "a.bio", 3 * f"{block}\n") == {cities: "none"}


def read(tmp_path, capsys, name, content, options=()):
    """The utterances of a corpus that is made of a file."""
    (tmp_path / name).write_text(content)
    imported(capsys, tmp_path / name, tmp_path / "made", *options)
    return rows_of(tmp_path / "made")


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        # I without B begins a chunk, comments give intents
        ("-DOCSTART- O\n\n# intent: fly there\nTo\tNN\tO\nBoston\tNN\tI-city\n", {"to/O boston/B-city": "fly_there"}),
        ("new\tJJ\tI-city\nyork\tNN\tI-city\nparis\tNN\tB-city\n", {"new/B-city york/I-city paris/B-city": "none"}),
        ("# intent: e-mail\n#a B-x\n# O\nb O\n", {"#a/B-x #/O b/O": "e-mail"}),
        ("# sent_id = 1\n#a\tB-x\nb\tO\n", {"#a/B-x b/O": "none"}),
        ("1\ta\tB-x\n2\tb\tO\n", {"a/B-x b/O": "none"}),
        ("doc1 0 a NN B-x\ndoc1 1 b NN O\n", {"a/B-x b/O": "none"}),
        ("me e-mail\nat O\nhome address\nnow address\n", {"me/B-e-mail at/O home/B-address now/I-address": "none"}),
    ],
)
def test_conll(tmp_path, capsys, block, expected):
    assert read(tmp_path, capsys, "a.conll", 3 * f"{block}\n") == expected


SPAN = {"text": "a b", "label": [[2, 3, "c"]]}
TAGGED = {"a/O b/B-c": "none"}
NEW_YORK = "fly/O to/O new/B-to_city york/I-to_city please/O"


@pytest.mark.parametrize(
    ("row", "options", "expected"),
    [
        ({"text": "a b", "label": "x"}, "", {"a/O b/O": "x"}),
        ({"text": "a b", "label": ["x", "y"], "tags": "O B-c"}, "", {"a/O b/B-c": "x#y"}),
        (SPAN, "", TAGGED),
        (SPAN, "--label label", TAGGED),
        ({"text": "a b", "label": "O B-c", "kind": "x"}, "--tags label --label kind", {"a/O b/B-c": "x"}),
        (SPAN | {"intent": "x"}, "", {"a/O b/B-c": "x"}),
        (SPAN | {"kind": "x"}, "--label kind", {"a/O b/B-c": "x"}),
        ({"text": "a b", "entities": [{"label": "c", "start_offset": 2, "end_offset": 3}]}, "", TAGGED),
        ({"text": "a b", "entities": ["b"], "intent": "x"}, "--ignore entities", {"a/O b/O": "x"}),
        ({"text": "a b", "cats": ["x", "y"], "entities": [[2, 3, "c"]]}, "", {"a/O b/B-c": "x#y"}),
        ({"text": "a b", "spans": [{"start": 2, "end": 3, "label": "c"}], "answer": "accept"}, "", TAGGED),
        (DOCCANO, "", {NEW_YORK: "none"}),
        (RELATIONS | {"kind": ["trip"]}, "--tags label --label kind", {NEW_YORK: "trip"}),
        ({"text": DOCCANO["text"], "label": [STUDIO]}, "--tags label", {NEW_YORK: "none"}),
        (TASK, "--tags label --label kind", {NEW_YORK: "trip#wish"}),
    ],
)
@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_json_of_annotation_tools(tmp_path, capsys, suffix, row, options, expected):
    content = json.dumps([row] * 3) if suffix == ".json" else f"{json.dumps(row)}\n" * 3
    assert read(tmp_path, capsys, f"a{suffix}", content, options.split()) == expected


def test_texts_without_spans_among_others(tmp_path, capsys):
    lines = [DOCCANO, {"text": "hello", "label": []}, DOCCANO]
    rows = read(tmp_path, capsys, "a.jsonl", "\n".join(map(json.dumps, lines)), ["--label", "label"])
    assert "hello/O" in rows


@pytest.mark.parametrize(
    ("name", "content", "options", "said"),
    [
        ("a.csv", "q,l\na,b\n", [], "line 2: no 'text'; there are q, l"),
        ("a.csv", "text,l\nhello,x\n?,y\n", [], "line 3: no words in 'text'"),
        ("a.csv", "text,label\nhello,x\n", [], "1 utterances are too few"),
        ("a.csv", "text,class\nhello,x\n", [], "line 2: neither a label nor tags; there are text, class;"),
        ("a.csv", "text;label\nhello;x\n", [], "line 1: ';' separates the columns; save the table with commas"),
        ("a.csv", "text,label\nhello,NaN\n", [], "line 2: the label NaN is a missing value"),
        ("a.csv", 'text,l\na,b\n"hello,x\n', [], "line 3: not a row of a table"),
        ("a.csv", 'text,l\n"two\nlines",x\n\n?,y\n', [], "line 5: no words"),
        ("a.csv", "text,l\na, b,x\n", ["--label", "l"], "line 2: 3 fields, but 2 columns (text, l)"),
        ("a.csv", "text,l,l\na,b,c\n", ["--label", "l"], "line 1: two columns are named 'l'"),
        ("a.tsv", 'text\tl\n"hello\tx\nbye "\ty\n', ["--label", "l"], "line 2: a quotation mark joins lines 2 to 3"),
        ("a.csv", "text,l\na,UNK\n", ["--label", "l"], "line 2: the label UNK is reserved"),
        ("a.csv", "text\n", [], "has no utterances"),
        ("a.csv", b"text\n\xff\n", [], "not UTF-8"),
        ("a.csv", "text,l\nhello,\n", ["--label", "l"], "the label is empty"),
        ("a.jsonl", '{"text": "a b", "t": ["O"]}\n', ["--tags", "t"], "2 words, but 1 tags"),
        ("a.jsonl", '{"text": ["a b"]}\n', [], "'a b' is not a word or tag"),
        ("a.jsonl", '{"text": "a", "text": "b"}\n', [], "line 1: it is not valid JSON (a key occurs twice)"),
        ("a.jsonl", "[" * 100_000, [], "line 1: it is not valid JSON"),
        ("a.jsonl", "[1]\n", [], "not an object"),
        ("a.jsonl", '{"text": {"a": 1}}\n', [], "neither text nor a list"),
        ("a.jsonl", '{"text": "a", "l": {"b": 1}}\n', ["--label", "l"], "the label is \"{'b': 1}\""),
        ("a.jsonl", '{"text": "a lima", "l": [[2, 5, "C"]]}\n', ["--label", "l"], "cuts the word 'lima'"),
        ("a.jsonl", '{"text": "a b", "l": [[0, 3, "C"], [2, 3, "D"]]}\n', ["--label", "l"], "overlap"),
        ("a.jsonl", '{"text": "a", "l": [[0, 1, "C"]]}\n{"text": "a", "l": "x"}\n', ["--label", "l"], "line 2: 'x'"),
        ("a.json", '{"text": "a"}', [], "not a list of objects"),
        ("a.json", '{"text": "a"}\n{"text": "b"}\n', [], "for an object in each line, name the file .jsonl"),
        ("a.json", '[{"data": {"text": "a"}, "annotations": []}]', [], "item 1: 0 annotations"),
        ("a.conll", "word\n", [], "'word' has no tag"),
        ("a.conll", "a O\nnew york B-city\n", [], "line 2: 3 columns, but the first word has 2"),
        ("a.conll", "a O\n10\N{NO-BREAK SPACE}km O\n", [], "line 2: '10\\xa0km' is not one word"),
        ("a.conll", "a O\nb B-x\nc city\n", [], "line 1: tag 'city' is of no known scheme"),
        ("a.conll", "a O\nb B-\n", [], "line 1: tag 'B-' is of no known scheme"),
        ("a.csv", "text,label\na\u200bb,x\n", [], "line 2: 'a\\u200bb' has the invisible character '\\u200b'"),
        (
            "a.csv",
            "text,label\na,\"[[0, 1, 'C']]\"\n",
            [],
            "line 2: the label \"[[0, 1, 'C']]\" is a list or an object",
        ),
        ("a.jsonl", '{"text": "a", "label": "x", "answer": "reject"}\n', [], "the annotator's answer is reject"),
        ("a.jsonl", '{"text": "a lima", "l": [[2, 9, "C"]]}\n', ["--label", "l"], "not within the 6 characters"),
        ("a.json", json.dumps([SKIPPED]), [], "item 1: the annotator has skipped it"),
        ("a.conll", "a O\n\n#b c\n", [], "line 3: neither a comment nor a word"),
        ("a.conll", "1-2 a O\n1 a O\n2 b O\n", [], "line 1: 1-2 is the id"),
        ("a.pdf", "x", [], "its suffix is unknown"),
    ],
)
def test_bad_input_leaves_nothing(tmp_path, capsys, name, content, options, said):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert said in refused(capsys, "data", "import", tmp_path / name, tmp_path / "made", *options)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_that_is_there_stays(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("text\n" + "hello\n" * 5)
    assert "exists" in refused(capsys, "data", "import", tmp_path / "a.csv", tmp_path)
    assert "cannot be read" in refused(capsys, "data", "import", tmp_path / "none.csv", tmp_path / "made")


@pytest.mark.parametrize("value", ["true", "0.5"])
def test_truth_values_and_fractions_are_names_in_a_table_alone(tmp_path, capsys, value):
    """docs/import.md says so: a table has text, where JSON has a value of another kind."""
    rows = [("fly to lima", value), ("eat in rome", "b"), ("play rock", "b"), ("go home", value)]
    (tmp_path / "a.csv").write_text("text,intent\n" + "".join(f"{text},{label}\n" for text, label in rows))
    (tmp_path / "a.jsonl").write_text(
        "".join(
            f'{{"text": "{text}", "intent": {label if label == value else json.dumps(label)}}}\n'
            for text, label in rows
        )
    )
    columns = ("--text", "text", "--label", "intent")
    run_json(capsys, "data", "import", tmp_path / "a.csv", tmp_path / "made", *columns)
    assert value in load_corpus(tmp_path / "made").intent_labels
    said = refused(capsys, "data", "import", tmp_path / "a.jsonl", tmp_path / "no", *columns)
    assert "it must be a name, or a list of names" in said and not (tmp_path / "no").exists()
    page = (ROOT / "docs" / "import.md").read_text(encoding="utf-8")
    assert "in JSON and parquet true, false and fractions, which are names in a table's text;" in page


def test_labels_that_differ_in_case_are_named(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("text,label\n" + "a,Flight\nb,flight\nc,fare\n" * 3)
    assert main(["data", "import", str(tmp_path / "a.csv"), str(tmp_path / "made")]) == 0
    assert "labels that differ in upper and lower case alone: Flight, flight\n" in capsys.readouterr().out

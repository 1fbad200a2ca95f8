"""Corpora from other formats: `bttlab data import`."""

import json

import pytest

from bttlab.cli import main
from bttlab.data import load_corpus, read_corpus


def imported(capsys, *arguments):
    assert main(["data", "import", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    assert main(["data", "import", *map(str, arguments)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("bttlab: error: ") and said.count("\n") == 1
    return said


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


def test_conll(tmp_path, capsys):
    """I without B begins a chunk, comments give intents."""
    utterance = "-DOCSTART- O\n\n# intent: fly there\nTo\tNN\tO\nBoston\tNN\tB-city\nLogan\tNN\tI-city\n\n"
    others = "new\tJJ\tI-city\nyork\tNN\tI-city\nparis\tNN\tB-city\n\n# a comment\n"
    (tmp_path / "a.conll").write_text(utterance + 2 * others)
    imported(capsys, tmp_path / "a.conll", tmp_path / "a")
    assert rows_of(tmp_path / "a") == {
        "to/O boston/B-city logan/I-city": "fly_there",
        "new/B-city york/I-city paris/B-city": "none",
    }
    assert read_corpus(tmp_path / "a").slot_labels == ["PAD", "UNK", "O", "B-city", "I-city"]


def test_more_classes_than_the_usual_model(tmp_path, capsys):
    rows = [{"text": f"about {label} " * (20 if label == 0 else 1), "label": label} for label in range(30)] * 3
    (tmp_path / "a.json").write_text(json.dumps(rows))
    found = imported(capsys, tmp_path / "a.json", tmp_path / "made")
    assert found["too_long"] == 3 and found["also_in_train"]["dev"] > 0
    (tmp_path / "model.toml").write_text("intents = 31\n")
    train = ["train", "--data", str(tmp_path / "made"), "--device", "reference", "--samples", "1"]
    assert main([*train, "--out", str(tmp_path / "run")]) == 2
    assert "intents = 31 into a file for --model" in capsys.readouterr().err
    assert main([*train, "--out", str(tmp_path / "run"), "--model", str(tmp_path / "model.toml")]) == 0


def rows_of(folder):
    """Return the utterances of a corpus: intent by words with tags."""
    corpus = read_corpus(folder)
    splits = [corpus.train, corpus.dev, corpus.test]
    rows = [row for split in splits for row in zip(split.words, split.slots, split.intents, strict=True)]
    return {" ".join(f"{w}/{t}" for w, t in zip(words, tags, strict=True)): intent for words, tags, intent in rows}


CITIES = "from/O north/B-from.city bay/I-from.city lima/B-from.city to/O quito/B-to.city"
SCHEMES = {
    "IOB1": "O I-from.city I-from.city B-from.city O I-to.city",
    "IOB2": "O B-from.city I-from.city B-from.city O B-to.city",
    "BIOES": "O B-from.city E-from.city S-from.city O S-to.city",
    "BILOU": "O B-from.city L-from.city U-from.city O U-to.city",
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes_of_tags_become_bio(tmp_path, capsys, scheme):
    words = "from north bay lima to quito".split()
    block = "".join(f"{word} {tag}\n" for word, tag in zip(words, SCHEMES[scheme].split(), strict=True))
    (tmp_path / "a.bio").write_text(3 * f"{block}\n")
    imported(capsys, tmp_path / "a.bio", tmp_path / "made")
    assert rows_of(tmp_path / "made") == {CITIES: "none"}


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("# intent: e-mail\n#a B-x\n# O\nb O\n", {"#a/B-x #/O b/O": "e-mail"}),
        ("# sent_id = 1\n#a\tB-x\nb\tO\n", {"#a/B-x b/O": "none"}),
    ],
)
def test_words_with_hashes(tmp_path, capsys, block, expected):
    (tmp_path / "a.conll").write_text(3 * f"{block}\n")
    imported(capsys, tmp_path / "a.conll", tmp_path / "made")
    assert rows_of(tmp_path / "made") == expected


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"text": "a b", "label": "x"}, {"a/O b/O": "x"}),
        ({"text": "a b", "intent": ["x", "y"], "tags": "O B-c"}, {"a/O b/B-c": "x#y"}),
        ({"text": ["a", "b"], "tags": ["O", "B-c"]}, {"a/O b/B-c": "none"}),
    ],
)
def test_columns_of_the_usual_names_are_read(tmp_path, capsys, row, expected):
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(row)}\n" * 3)
    imported(capsys, tmp_path / "a.jsonl", tmp_path / "made")
    assert rows_of(tmp_path / "made") == expected


@pytest.mark.parametrize(
    ("name", "content", "options", "said"),
    [
        ("a.csv", "q,label\na,b\n", [], "line 2: no 'text'; there are q, label"),
        ("a.csv", "text,label\nhello,x\n?,y\n", [], "line 3: no words"),
        ("a.csv", "text,label\nhello,x\n", [], "1 utterances are too few"),
        ("a.csv", "text,class\nhello,x\n", [], "line 2: neither a label nor tags; there are text, class;"),
        ("a.csv", "text;label\nhello;x\n", [], "there are text;label"),
        ("a.csv", "text,label\nhello,NaN\n", [], "line 2: the label is 'NaN'"),
        ("a.csv", 'text,label\na,b\n"hello,x\n', [], "line 3: not a row of a table"),
        ("a.csv", 'text,label\n"two\nlines",x\n', [], "line 3: a quotation mark joins lines"),
        ("a.csv", "text,label\na, b,x\n", [], "line 2: not as many fields as columns (text, label)"),
        ("a.csv", "text,label\na\n", [], "line 2: not as many fields as columns"),
        ("a.csv", "text,l,l\na,b,c\n", ["--label", "l"], "line 1: two columns have the same name"),
        ("a.csv", "text,label\na,UNK\n", [], "line 2: the label UNK is reserved"),
        ("a.conll", "# intent: PAD\na O\n", [], "line 2: the label PAD is reserved"),
        ("a.csv", "text\n", [], "has no utterances"),
        ("a.csv", b"text\n\xff\n", [], "not UTF-8"),
        ("a.csv", "text,label\nhello,\n", [], "the label is ''"),
        ("a.csv", "text,label\na,\"[[0, 1, 'C']]\"\n", [], "line 2: the label is \"[[0, 1, 'C']]\""),
        ("a.csv", "text,label\na\u200bb,x\n", [], "line 2: 'a\\u200bb' has the invisible character '\\u200b'"),
        ("a.jsonl", '{"text": "a b", "t": ["O"]}\n', ["--tags", "t"], "2 words, but 1 tags"),
        ("a.jsonl", '{"text": ["a b"], "label": "x"}\n', [], "\"['a b']\" is not text, or a list of words"),
        ("a.jsonl", '{"text": {"a": 1}, "label": "x"}\n', [], "is not text, or a list of words"),
        ("a.jsonl", '{"text": 3\n', [], "line 1: it is not valid JSON"),
        ("a.jsonl", "[" * 100_000, [], "line 1: it is not valid JSON"),
        ("a.jsonl", "[1]\n", [], "not an object"),
        ("a.jsonl", '{"text": "a", "label": {"b": 1}}\n', [], "the label is \"{'b': 1}\""),
        ("a.jsonl", '{"text": "a", "label": [true]}\n', [], "the label is 'True'"),
        ("a.jsonl", '{"text": "a", "label": [[0, 1, "C"]]}\n', [], "the label is \"[0, 1, 'C']\""),
        ("a.json", '{"text": "a"}', [], "not a list of objects"),
        ("a.conll", "word\n", [], "line 1: 1 columns; write a word and its tag"),
        ("a.conll", "a O\nnew york B-city\n", [], "line 2: 3 columns"),
        ("a.conll", "a\tO\nnew york\tB-city\n", [], "line 2: a column is empty or has a space"),
        ("a.conll", "a O\n10\N{NO-BREAK SPACE}km O\n", [], "line 2: 3 columns"),
        ("a.conll", "a O\nb B\nc I\n", [], "line 1: tag 'B' is of no known scheme"),
        ("a.conll", "a O\nb B:city\nc I:city\n", [], "line 1: tag 'B:city' is of no known scheme"),
        ("a.conll", "a O\nb M-city\n", [], "line 1: tag 'M-city' is of no known scheme"),
        ("a.conll", "1 a O\n2 b O\n", [], "the first column has no words; remove columns of ids"),
        ("a.conll", "doc1 a O\ndoc1 b O\n\ndoc2 a O\ndoc2 b O\n", [], "remove columns of ids"),
        ("a.pdf", "x", [], "its suffix is unknown"),
    ],
)
def test_bad_input_leaves_nothing(tmp_path, capsys, name, content, options, said):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert said in refused(capsys, tmp_path / name, tmp_path / "made", *options)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_that_is_there_stays(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("text\n" + "hello\n" * 5)
    assert "exists" in refused(capsys, tmp_path / "a.csv", tmp_path)
    assert "cannot be read" in refused(capsys, tmp_path / "none.csv", tmp_path / "made")

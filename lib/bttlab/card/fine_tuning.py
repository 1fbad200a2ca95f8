"""Fine-tune a model of transformers on the card, and give it back.

`finetune` is the whole way. Its steps are functions of their own: `tokenized`, `compress`, `cut_vocabulary`, `trace`,
`open_trainer`, `decompress`.
"""

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from bttlab.card.opening import open_trainer
from bttlab.compiler.module import ModuleModel
from bttlab.compiler.timing import time_program
from bttlab.compiler.trace import trace
from bttlab.data import Samples, epoch_order
from bttlab.model import Optimizer, ReferenceTrainer
from bttlab.model.loop import chunks, train_pieces
from bttlab.tensor import Compression, VocabularyCut, compress, cut_vocabulary, decompress
from bttlab.util.errors import BttlabError

COMPARED = 16  # samples with which card and PyTorch are compared
AGREES = 1e-3  # largest difference of a loss, over these samples, that is rounding
HELD_OUT = 10  # of so many samples of the training data one is for the dev split, if there is none
Vocabulary = Literal["cut", "compressed", "whole"]


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
class Texts:
    """Texts as a tokenizer has them: special tokens included.

    `ids`, `types`: int64 of shape (n, length), 0 after the end. `lengths`: of shape (n,). `cut`: how many texts are
    longer than `length` tokens, and have lost their end.
    """

    ids: np.ndarray
    types: np.ndarray
    lengths: np.ndarray
    cut: int

    @property
    def used(self) -> np.ndarray:
        """The ids that occur, in ascending order."""
        return np.unique(self.ids[np.arange(self.ids.shape[1]) < self.lengths[:, None]])

    def samples(self, labels: np.ndarray, cut: VocabularyCut | None = None, words: int = 0) -> Samples:
        """Return samples of these texts and labels.

        `cut`: of the model's vocabulary. `words`: rows of the model's table, if it is one of `SentencePairs`.
        """
        ids = self.ids if cut is None else cut.ids(self.ids)
        ids = np.where(np.arange(ids.shape[1]) < self.lengths[:, None], ids + words * self.types, 0)
        lengths, intents = self.lengths.astype(np.int32), np.asarray(labels, np.int32)
        return Samples(ids.astype(np.int32), lengths, intents, np.zeros(ids.shape, np.int32))


def tokenized(tokenizer: Any, texts: Sequence[str], pairs: Sequence[str] | None, length: int) -> Texts:
    """Return texts, or pairs of texts, by a tokenizer of transformers.

    Raises BttlabError if there are no texts, or one of them is not a text.
    """
    for column in (texts, pairs or ()):
        bad = next((n for n, x in enumerate(column) if not isinstance(x, str)), None)
        if bad is not None:
            raise BttlabError(f"row {bad}: {column[bad]!r:.40} is not a text")
    if not texts:
        raise BttlabError("there are no texts: give at least one row")
    second = () if pairs is None else (list(pairs),)
    whole = tokenizer(list(texts), *second)["input_ids"]
    found = tokenizer(list(texts), *second, truncation=True, max_length=length)
    ids, types = np.zeros((2, len(texts), length), np.int64)
    lengths = np.array([len(row) for row in found["input_ids"]])
    for n, row in enumerate(found["input_ids"]):
        ids[n, : len(row)] = row
    for n, row in enumerate(found.get("token_type_ids", ())):  # not every tokenizer has them
        types[n, : len(row)] = row
    return Texts(ids, types, lengths, sum(len(row) > length for row in whole))


@dataclass(frozen=True)
class Epoch:
    """An epoch: the mean loss of its samples, each before its update, and the accuracy on the dev split after it."""

    loss: float
    accuracy: float


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
    before : float
        Accuracy on the dev split before training, after compression.
    epochs : list of Epoch
    best : int
        Number of the epoch whose parameters the model has; 0 if no epoch was better than `before`.
    predictions : np.ndarray
        The card's labels of the dev split with these parameters, int32.
    traced : ModuleModel
        The model as the card had it, for `compile` and `estimate`.
    notes : list of str
        What was cut, frozen and counted.
    """

    model: Any
    compression: Compression | None
    difference: float
    before: float
    epochs: list[Epoch]
    best: int
    predictions: np.ndarray
    traced: ModuleModel
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [] if self.compression is None else [str(self.compression)]
        lines += [*self.notes, f"largest difference of a loss from PyTorch's: {self.difference:.1e} (measured)"]
        lines.append(f"before training: accuracy {self.before:.1%} (measured, dev)")
        for number, epoch in enumerate(self.epochs, 1):
            best = ", the best" if number == self.best else ""
            lines.append(f"epoch {number}: loss {epoch.loss:.3f}, accuracy {epoch.accuracy:.1%} (measured, dev){best}")
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
    vocabulary: Vocabulary = "cut",
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
    """Fine-tune a classifier of texts, or of pairs of texts, on the card, and return it dense, as transformers has it.

    The model that is given does not change. Steps: freeze, compress, cut the vocabulary to the ids of the samples,
    trace, load the program, compare the first losses with PyTorch, train with early stopping, make all dense again.
    Dropout is off: the machine has no random numbers.

    Parameters
    ----------
    model : nn.Module
        An `AutoModelForSequenceClassification` or the like.
    tokenizer : PreTrainedTokenizerFast
        The model's own.
    train, dev : table
        A list of dicts, or columns by name: a dict of lists, a pandas.DataFrame, a datasets.Dataset. Without `dev`
        each tenth row of `train` is held out for it.
    text, pair, label : str
        Names of the columns; labels are numbers, or names of `model.config.label2id`. Other names are the classes in
        alphabetical order, if the configuration has no names of its own.
    rank, error : int, float, optional
        As for `compress`, with ranks up to 64; without both, no layer is compressed. The last layer stays dense.
    vocabulary : {"cut", "compressed", "whole"}
        The table of tokens: cut to the ids of the samples (`cut_vocabulary`), a TTM of `rank`, at most 32, or dense.
    freeze, skip : list of str
        Layers whose parameters are not trained, and layers that stay dense.
    sequence_length : int
        Tokens of the longest sample, special ones included; longer texts lose their end.
    optimizer : Optimizer
        By default AdamW.
    patience : int
        Training ends after so many epochs without a better accuracy on the dev split.
    device, seed
        As for `open_trainer`; of the order of samples.
    progress : bool
        Whether to show a progress bar, if tqdm is installed.

    Raises
    ------
    BttlabError
        If a column, a label or a layer is not there, the model is no classifier of texts, or the card and PyTorch
        compute different losses.
    ProgramError
        If the card does not have an operation of the model, or no space for it; the message says what has space.
    """
    optimizer = optimizer or Optimizer("adamw")
    model, notes = copy.deepcopy(model).eval(), []
    splits = [train, dev] if dev is not None else _held_out(train, [c for c in (text, pair, label) if c])
    names = _label_ids(model, [x for split in splits for x in _column(split, label)])
    labels = [np.array([names(x) for x in _column(split, label)], np.int32) for split in splits]
    texts = [
        tokenized(tokenizer, _column(split, text), None if pair is None else _column(split, pair), sequence_length)
        for split in splits
    ]
    for name, each in zip(("train", "dev"), texts, strict=True):
        cut_off = f", {each.cut} cut to {sequence_length} tokens" if each.cut else ""
        notes.append(f"{name}: {len(each.ids)} samples{cut_off}")
    _freeze(model, freeze)
    table = _table_name(model)
    cut = None
    if vocabulary == "cut":
        used = np.unique(np.concatenate([each.used for each in texts]))
        cut = cut_vocabulary(model, used, table, tokenizer.unk_token_id)
        notes.append(f"vocabulary: {len(cut.kept):,} of {cut.whole.num_embeddings:,} rows")
    elif vocabulary not in ("compressed", "whole"):
        raise BttlabError(f'vocabulary is {vocabulary!r}: give "cut", "compressed" or "whole"')
    report = _compressed(model, table, rank, error, skip, vocabulary == "compressed")
    words, network = 0, model
    if any(each.types.any() for each in texts) and "token_type_ids" in signature(model.forward).parameters:
        words = len(cut.kept) if cut is not None else _rows(model.get_submodule(table))
        network = SentencePairs(model, words)
    traced = trace(network, sequence_length)
    if traced.tasks != ["classification"]:
        raise BttlabError(f"{traced.title} is for {traced.task}: finetune takes classifiers of texts; trace takes all")
    trainer: Any = open_trainer(traced, device, optimizer=optimizer)
    trainer.program.check_optimizer(optimizer)
    notes.append(f"{traced}")
    samples, held_out = (each.samples(ids, cut, words) for each, ids in zip(texts, labels, strict=True))
    mean = round(float(np.mean(samples.lengths)))
    cycles = int(time_program(trainer.program.sample, mean).cycles)
    notes.append(f"{cycles:,} cycles for a sample of {mean} tokens (modelled)")
    start = traced.parameters()
    difference = _compare(trainer, traced, samples[:COMPARED], start, optimizer, learning_rate)
    trainer.load_parameters(start)
    before, history, best, kept = _accuracy(trainer, held_out), [], 0, start
    steps = _progress(epochs * len(samples), progress)
    for number in range(1, epochs + 1):
        order, losses = epoch_order(len(samples), seed, number), []
        shuffled = samples[order]
        step = lambda part: trainer.train(shuffled[part], optimizer, learning_rate)  # noqa: B023, E731

        def trained(part: slice, found: np.ndarray, seconds: float) -> None:
            losses.append(found)  # noqa: B023
            steps.update(len(found))

        train_pieces(chunks(0, len(samples), optimizer.batch_size), step, trained)
        history.append(Epoch(float(np.concatenate(losses).mean()), _accuracy(trainer, held_out)))
        if history[-1].accuracy > max([before, *(epoch.accuracy for epoch in history[:-1])]):
            best, kept = number, trainer.store_parameters()
        elif number - best >= patience:
            break
    steps.close()
    trainer.load_parameters(kept)
    predictions = trainer.predict(held_out).intents
    network.load_state_dict({name: torch.from_numpy(value) for name, value in kept.items()}, strict=False)
    decompress(model)
    if cut is not None:
        cut.grow()
    return FineTuned(model, report, difference, before, history, best, predictions, traced, notes)


def _rows(table: Any) -> int:
    return table.num_embeddings


def _column(table: Any, name: str) -> list[Any]:
    """Return a column of a list of dicts, or of a table with columns by name."""
    is_list = isinstance(table, list | tuple)
    try:
        return [row[name] for row in table] if is_list else list(table[name])
    except (KeyError, IndexError, TypeError):
        columns = getattr(table, "column_names", None) or getattr(table, "columns", None)
        if columns is None:
            columns = table.keys() if isinstance(table, Mapping) else table[0] if table else ()
        known = ", ".join(map(str, columns)) if isinstance(columns, Iterable) else "no columns"
        raise BttlabError(f"the table has no column {name!r} in each row; it has {known}") from None


def _held_out(table: Any, names: list[str]) -> list[dict[str, list[Any]]]:
    """Divide a table into training and dev split: each tenth row is for dev."""
    columns = {name: _column(table, name) for name in names}
    if len(columns[names[0]]) < HELD_OUT:
        raise BttlabError(f"{len(columns[names[0]])} rows are too few to hold out every tenth: give dev=")
    is_dev = lambda n: n % HELD_OUT == HELD_OUT - 1  # noqa: E731
    return [
        {name: [x for n, x in enumerate(values) if is_dev(n) == wanted] for name, values in columns.items()}
        for wanted in (False, True)
    ]


def _label_ids(model: Any, labels: list[Any]) -> Any:
    """Return the function from labels to class numbers; write names of classes into the model's configuration."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "num_labels"):
        raise BttlabError(f"{type(model).__name__} is no classifier of transformers: its config has no num_labels")
    count = config.num_labels
    if all(isinstance(x, int | np.integer) and not isinstance(x, bool) for x in labels):
        bad = next((x for x in labels if not 0 <= x < count), None)
        if bad is not None:
            raise BttlabError(
                f"label {bad} is not one of the model's {count} classes: from_pretrained(…, num_labels=…)"
            )
        return int
    ids = dict(config.label2id)
    if ids.keys() == {f"LABEL_{n}" for n in range(count)} and not set(labels) <= ids.keys():
        names = sorted({str(x) for x in labels})
        if len(names) > count:
            known = f"the data have {len(names)} labels, the model has {count} classes"
            raise BttlabError(f"{known}: from_pretrained(…, num_labels={len(names)})")
        ids = {name: n for n, name in enumerate(names)}
        config.label2id = ids | {f"LABEL_{n}": n for n in range(len(names), count)}
        config.id2label = {n: name for name, n in config.label2id.items()}
    bad = next((x for x in labels if x not in ids), None)
    if bad is not None:
        raise BttlabError(f"label {bad!r} is none of the model's: {', '.join(map(str, ids))}")
    return ids.__getitem__


def _table_name(model: Any) -> str:
    """Return the name of the layer with a row for each token."""
    table = model.get_input_embeddings()
    return next(name for name, layer in model.named_modules() if layer is table)


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


def _accuracy(trainer: Any, samples: Samples) -> float:
    return float((trainer.predict(samples).intents == samples.intents).mean())


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

"""Options that name a model, the same on every command: --model, --encoders, --rank and the sizes; and --flow."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bttlab.model.choices import ACTIVATIONS, FLOW_TITLES, PAPER_FLOW, TASKS
from bttlab.util.errors import BttlabError
from bttlab.util.reading import read_toml
from bttlab.util.terminal import one_line, say

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel
    from bttlab.data import Corpus
    from bttlab.model import ModelConfig

ENCODERS, SEVERAL = 2, (2, 4, 6)
SIZES = {  # option: what it is
    "embedding_rank": "rank of the word embedding (default: 30)",
    "hidden_size": "features of a token (default: 768)",
    "heads": "attention heads, which divide them (default: 12)",
    "sequence_length": "longest sequence in tokens, [CLS] included (default: 32)",
    "vocabulary": "tokens that the model has room for, the most frequent words (default: 1000, or all of the corpus)",
}
OPTIONS = ("encoders", "rank", "activation", *SIZES)


def add_model(parser: argparse.ArgumentParser, several: Sequence[int] = ()) -> None:
    """Add the options of a model; `several`: of models that differ in their encoders, these by default."""
    add = parser.add_argument
    add(
        "--model",
        metavar="FILE.toml|FILE.py:CLASS",
        help="the model's sizes: fields of bttlab.model.ModelConfig, as encoders = 2; the options below come before "
        "them. Or a PyTorch module of your own: its code runs",
    )
    default = f"encoder blocks (default: {' '.join(map(str, several or (ENCODERS,)))})"
    add("--encoders", type=int, nargs="+" if several else None, metavar="N", help=default)
    add(
        "--rank",
        type=ranks,
        metavar="N[,LAYER=N…]",
        help="rank of the linear layers, and of layers that have their own: 12,encoders.0.query=6 (default: 12)",
    )
    add("--task", choices=tuple(TASKS), help="of a module's output for each token, if it could be either")
    add("--activation", choices=ACTIVATIONS, help="of the feed-forward blocks (default: gelu)")
    for name, help_text in SIZES.items():
        add(f"--{name.replace('_', '-')}", type=int, metavar="N", help=help_text)


def add_flow(parser: argparse.ArgumentParser, default: str | None = PAPER_FLOW) -> None:
    parser.add_argument(
        "--flow",
        choices=tuple(FLOW_TITLES),
        default=default,
        help="order of contraction: bidirectional (the paper's), right_to_left, or auto, the fastest (modelled) "
        "for the corpus' lengths (default: bidirectional)",
    )


def model_of(options: argparse.Namespace, seed: int = 0) -> Any:
    """Return the model that the options name; parameters and errors are those of `models_of`."""
    return models_of(options, (ENCODERS,), seed)[0]


def is_module(options: argparse.Namespace) -> bool:
    """Return whether --model names a class of a Python file; BttlabError if it names one half."""
    if re.search(r"\.py$|(?<!\.py):\w+$", options.model or ""):
        raise BttlabError(f"--model {options.model}: give FILE.toml with sizes, or FILE.py:CLASS for a module")
    return re.fullmatch(r".+\.py:\w+", options.model or "") is not None


def module_of(options: argparse.Namespace, seed: int = 0) -> "ModuleModel":
    """Return the PyTorch module that --model names, as the card trains it.

    Its longest sequence is --sequence-length, else its attribute `sequence_length`, else 32. `seed` is of the module's
    own initial parameters.

    Raises BttlabError as `bttlab.compiler.module_file.module_of_source`, or if there are options of another model.
    """
    from bttlab.compiler.module_file import load_module

    for name in OPTIONS:
        if name != "sequence_length" and getattr(options, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise BttlabError(f"--model {options.model} {option}: a module has sizes of its own; leave {option} out")
    try:
        model = load_module(options.model, options.sequence_length, seed, options.task)
    except BttlabError as error:
        raise BttlabError(f"--model {error}") from None
    say(model)
    return model


def has_vocabulary(options: argparse.Namespace) -> bool:
    """Return whether the options or their file say how many words the model knows: it does not grow with a corpus."""
    return getattr(options, "vocabulary", None) is not None or (
        getattr(options, "model", None) is not None
        and not is_module(options)
        and "vocabulary_size" in read_toml(options.model)
    )


def fitted_to(corpus: "Corpus", options: argparse.Namespace, model: Any) -> Any:
    """Return a model that fits a corpus, as `bttlab train` trains it; a module, or one with --vocabulary, stays.

    A note says what became of the vocabulary.
    """
    from bttlab.model import ModelConfig
    from bttlab.runs.settings import model_for

    if not isinstance(model, ModelConfig):
        return model
    fitted = model_for(corpus, model, grows=not has_vocabulary(options))
    if fitted.vocabulary_size != model.vocabulary_size:
        words = f"all words of {corpus.name}, in a table of {fitted.vocabulary_size:,} rows"
        say(f"bttlab: note: the model has room for {one_line(words)}, as in bttlab train")
    return fitted


def say_encoding(corpus: "Corpus", model: Any, splits: Sequence[str]) -> None:
    """Print what of a corpus's splits a model does not see: words that are cut or unknown, and unknown labels."""
    from bttlab.data import Vocabulary, encoded_split

    vocabulary = Vocabulary.from_sentences(corpus.train.words, model.vocabulary_size)
    for name in splits:
        say(f"bttlab: note: {one_line(encoded_split(corpus, name, vocabulary, model)[1])}")


def models_of(options: argparse.Namespace, several: Sequence[int], seed: int = 0) -> "list[ModelConfig | ModuleModel]":
    """Return a model for each number of encoders: those of --encoders, else of --model, else `several`; or a module.

    Raises BttlabError if --model cannot be read, or a value breaks a rule of `ModelConfig`; else as `module_of`.
    """
    from bttlab.model.config import HIDDEN_MODES, ModelConfig

    if is_module(options):
        return [module_of(options, seed)]
    if options.task is not None:
        raise BttlabError(f"--task {options.task}: it is for a module, --model FILE.py:CLASS; leave it out")
    values = {} if options.model is None else read_toml(options.model)
    given = {name: getattr(options, name) for name in SIZES if name != "vocabulary"}
    given |= {"vocabulary_size": options.vocabulary, "activation": options.activation}
    given = {name: value for name, value in given.items() if value is not None}
    modes = {name for name in HIDDEN_MODES if "hidden_size" in given}
    modes |= {"embedding_row_modes"} if "vocabulary_size" in given else set()
    try:
        base = ModelConfig.of_sizes({name: values[name] for name in values if name not in modes} | given)
    except (BttlabError, TypeError) as error:
        raise BttlabError(f"--model {options.model}: {error}" if values else str(error)) from None
    counts = options.encoders
    if counts is None:
        counts = [base.encoders] if "encoders" in values else several
    counts = counts if isinstance(counts, Sequence) else [counts]
    return [replace(base, encoders=count, **(options.rank or {})) for count in counts]


def ranks(text: str) -> dict[str, Any]:
    """Read the argument of --rank, for argparse: fields of ModelConfig."""
    default, *of_layers = text.split(",")
    try:
        fields: dict[str, Any] = {"linear_rank": int(default)}
        pairs = [part.split("=") for part in of_layers]
        if pairs:
            fields["ranks"] = tuple(sorted((name, int(rank)) for name, rank in pairs))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give a rank, and after commas layers with ranks of their own: 12,encoders.0.query=6"
        ) from None
    return fields

"""Names that options and settings choose from. The command line imports them without pydantic."""

from typing import Literal, NamedTuple, get_args

PAPER_FLOW = "bidirectional"  # the order of contraction of arXiv 2501.06663
FLOW_TITLES = {PAPER_FLOW: "bi-directional", "auto": "auto", "right_to_left": "right to left"}  # with their titles
TYPICAL_TOKENS = 13  # mean length of an utterance of ATIS, [CLS] included, rounded up


class Rule(NamedTuple):
    """What an update rule takes."""

    learning_rate: float  # by default, at batch 1
    moments: tuple[str, ...] = ()  # that it stores for each parameter
    constants: tuple[str, ...] = ()  # fields of `Optimizer`; the first is the decay of the first moment
    sums_gradients: bool = True  # whether the sum of an update's gradients is all that it takes of them


OptimizerName = Literal["sgd", "momentum", "adamw"]
OPTIMIZERS: dict[OptimizerName, Rule] = {  # in the order of hls_src/processor/state.h
    "sgd": Rule(4e-3),
    # Momentum 0.9 makes a step ten times as long in the end, so it starts from a tenth.
    "momentum": Rule(4e-4, ("first_moment",), ("momentum",)),
    "adamw": Rule(
        3e-4, ("first_moment", "second_moment"), ("beta1", "beta2", "epsilon", "weight_decay"), sums_gradients=False
    ),
}
LEARNING_RATES: dict[str, float] = {name: rule.learning_rate for name, rule in OPTIMIZERS.items()}
LANGUAGE_MODEL = "language model"
IGNORED = -100  # PyTorch's ignore_index: a label that is none of the classes
TASKS = {  # of a module's output
    "classification": "a label for each sample",
    "tagging": "a label for each token",
    LANGUAGE_MODEL: "the next token",
}
Activation = Literal["gelu", "relu", "silu", "tanh"]  # names of `bttlab.compiler.functions.ACTIVATIONS`
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)

"""Names that options and settings choose from. The command line imports them without pydantic."""

PAPER_FLOW = "bidirectional"  # the order of contraction of arXiv 2501.06663
FLOW_TITLES = {PAPER_FLOW: "bi-directional", "auto": "auto", "right_to_left": "right to left"}  # with their titles
# Default learning rates by optimizer, at batch 1. Momentum 0.9 makes a step ten times as long in the end, so it starts
# from a tenth.
LEARNING_RATES = {"sgd": 4e-3, "momentum": 4e-4, "adamw": 3e-4}
OPTIMIZERS = tuple(LEARNING_RATES)
LANGUAGE_MODEL = "language model"
TASKS = {  # of a module's output
    "classification": "a label for each sample",
    "tagging": "a label for each token",
    LANGUAGE_MODEL: "the next token",
}
ACTIVATIONS = ("gelu", "relu", "silu", "tanh")

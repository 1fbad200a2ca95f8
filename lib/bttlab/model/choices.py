"""Names that options and settings choose from. The command line imports them without pydantic."""

PAPER_FLOW = "bidirectional"  # the order of contraction of arXiv 2501.06663
FLOWS = {PAPER_FLOW: "bi-directional", "auto": "auto", "right_to_left": "right to left"}  # with their titles
OPTIMIZERS = ("sgd", "momentum", "adamw")
ACTIVATIONS = ("gelu", "relu", "silu", "tanh")

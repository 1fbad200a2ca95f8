"""The transformer: configuration, PyTorch reference, one training step."""

from bttlab.lazy import names_of

_MODULES = {
    "batches": ("batch_logits", "batch_losses", "equal_length_batches", "predict_in_batches"),
    "config": ("FLOWS", "OPTIMIZERS", "PAPER_FLOW", "ConfigError", "ModelConfig", "Optimizer"),
    "initial": ("initial_parameters",),
    "reference": ("ReferenceTrainer", "predict"),
    "size": ("ModelSize", "model_sizes"),
    "trainer": (
        "FAULTS",
        "NumericalFault",
        "Predictions",
        "StateError",
        "Trainer",
        "check_finite",
        "check_label_smoothing",
        "check_learning_rates",
    ),
    "transformer": ("Transformer", "loss", "sample_losses"),
}
__getattr__ = names_of(globals(), _MODULES)
__all__ = [
    "FAULTS",
    "FLOWS",
    "OPTIMIZERS",
    "PAPER_FLOW",
    "ConfigError",
    "ModelConfig",
    "ModelSize",
    "NumericalFault",
    "Optimizer",
    "Predictions",
    "ReferenceTrainer",
    "StateError",
    "Trainer",
    "Transformer",
    "batch_logits",
    "batch_losses",
    "check_finite",
    "check_label_smoothing",
    "check_learning_rates",
    "equal_length_batches",
    "initial_parameters",
    "loss",
    "model_sizes",
    "predict",
    "predict_in_batches",
    "sample_losses",
]

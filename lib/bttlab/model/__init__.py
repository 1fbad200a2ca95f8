"""The transformer: configuration, PyTorch reference, one training step."""

from bttlab.model.batches import batch_logits, batch_losses, equal_length_batches, predict_in_batches
from bttlab.model.config import PAPER_FLOW, ConfigError, ModelConfig, Optimizer
from bttlab.model.initial import initial_parameters
from bttlab.model.reference import ReferenceTrainer, predict
from bttlab.model.size import ModelSize, model_sizes
from bttlab.model.trainer import (
    FAULTS,
    NumericalFault,
    Predictions,
    StateError,
    Trainer,
    check_finite,
    check_label_smoothing,
    check_learning_rates,
)
from bttlab.model.transformer import Transformer, loss, sample_losses

__all__ = [
    "FAULTS",
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

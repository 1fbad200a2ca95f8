"""The transformer: configuration, PyTorch reference and training loop."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "batches": ("batch_logits", "batch_losses", "equal_length_batches", "predict_in_batches"),
        "choices": ("FLOWS", "OPTIMIZERS", "PAPER_FLOW"),
        "config": ("ConfigError", "ModelConfig", "Optimizer"),
        "initial": ("initial_parameters",),
        "module": ("LANGUAGE_MODEL", "ModuleConfig", "config_of"),
        "network": ("network_of",),
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
    },
)

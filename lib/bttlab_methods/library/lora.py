"""LoRA: weight matrices that move in low rank only."""

from dataclasses import dataclass
from typing import Any

from bttlab.model.config import LINEARS
from bttlab_methods.pretrained import FromPretrained
from bttlab_methods.training import Training


@dataclass(frozen=True)
class LoRA(FromPretrained):
    """Freeze a model trained first, and train a product of two thin matrices beside each of its linear layers.

    Parameters
    ----------
    rank : int
        Of what is added to a weight matrix.
    alpha : float
        What is added counts alpha / rank.
    pretraining : int
        Samples that the model is trained on first.
    rate_factor : float
        Of the learning rate.
    """

    name = "lora"
    source = "Hu et al., arXiv 2106.09685, section 4.1; peft"
    changes = FromPretrained.changes | {"linear layers"}

    rank: int = 8
    alpha: float = 16.0
    rate_factor: float = 4.0

    def choose_trained(self, training: Training) -> None:
        """Let peft put its layers in place of the encoders' and poolers'; it freezes all else."""
        from peft import LoraConfig, inject_adapter_in_model

        layers = [*LINEARS, "intent_pooler", "slot_pooler"]
        inject_adapter_in_model(LoraConfig(r=self.rank, lora_alpha=self.alpha, target_modules=layers), training.model)

    def finish(self, training: Training) -> dict[str, Any]:
        """Add the products to the matrices: the model is scored as one without LoRA."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        for module in training.model.modules():
            if isinstance(module, BaseTunerLayer):
                module.merge()
        return super().finish(training)

"""Fine-tuning of everything: what the parameter-efficient methods are measured by."""

from dataclasses import dataclass

from bttlab_methods.pretrained import FromPretrained
from bttlab_methods.training import Training


@dataclass(frozen=True)
class FullFinetuning(FromPretrained):
    """Go on training all parameters of a model that was trained on another corpus first.

    Parameters
    ----------
    pretraining : int
        Samples that the model is trained on first.
    rate_factor : float
        Of the learning rate.
    """

    name = "full-finetuning"
    source = "Howard and Ruder, arXiv 1801.06146; the reference of Houlsby et al., arXiv 1902.00751, section 3"

    def choose_trained(self, training: Training) -> None:
        """Train all."""

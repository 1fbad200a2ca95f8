"""T-Fixup: a transformer that needs neither LayerNorms nor a slow rise of the learning rate."""

from dataclasses import dataclass, replace

from torch import nn

from bttlab.tensor import EMBEDDING_STD
from bttlab_methods.branches import remove_norms, scale_weights
from bttlab_methods.method import Method
from bttlab_methods.setting import Setting
from bttlab_methods.training import Training


@dataclass(frozen=True)
class TFixup(Method):
    """Scale embeddings, values, outputs and feed-forward layers by the depth; no LayerNorms, no warm-up.

    Of N encoders of d features: embeddings get the standard deviation d^(-1/2) (9N)^(-1/4), the matrices of value,
    output, first and second are Xavier's times 0.67 N^(-1/4), the paper's factor for encoders.

    Parameters
    ----------
    rate_factor : float
        Of the learning rate: without LayerNorms the small embeddings take longer to count.
    """

    name = "t-fixup"
    family = "initialisation"
    source = "Huang et al., ICML 2020 (Improving Transformer Optimization Through Better Initialization), section 3"
    changes = frozenset({"initialisation"})

    rate_factor: float = 3.0

    def change_setting(self, setting: Setting) -> Setting:
        """Return the setting with the method's learning rate, in full from the start."""
        return replace(setting, warmup=0.0).scaled(self.rate_factor)

    def change_model(self, training: Training) -> None:
        """Change the embedding and every encoder."""
        model = training.model
        depth, features = len(model.encoders), training.setting.config.hidden_size
        for table in (model.embedding.word, model.embedding.position):
            scale_weights(table, features**-0.5 / EMBEDDING_STD * (9 * depth) ** -0.25)
        model.embedding.norm = nn.Identity()
        for encoder in model.encoders:
            remove_norms(encoder)
            for layer in (encoder.value, encoder.output, encoder.first, encoder.second):
                scale_weights(layer, 0.67 * depth**-0.25)

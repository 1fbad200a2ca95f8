"""Tensor compression: what BTT Lab is about."""

from dataclasses import dataclass, replace

from bttlab_methods.method import Method
from bttlab_methods.setting import Setting


@dataclass(frozen=True)
class TensorCompression(Method):
    """Linear layers in TT format, the embedding in TTM format, trained as cores; contraction bi-directional.

    Parameters
    ----------
    rank, embedding_rank : int
        Internal ranks of the TT layers and of the TTM embedding.
    rate_factor : float
        Of the learning rate: cores want a higher one than matrices.
    """

    name = "tensor"
    family = "tensor compression"
    source = "arXiv 2501.06663"
    changes = frozenset({"linear layers", "embedding"})

    rank: int = 12
    embedding_rank: int = 30
    rate_factor: float = 4.0

    def change_setting(self, setting: Setting) -> Setting:
        """Return the setting with a tensor model."""
        config = replace(setting.config, format="tensor", linear_rank=self.rank, embedding_rank=self.embedding_rank)
        return replace(setting, config=config).scaled(self.rate_factor)

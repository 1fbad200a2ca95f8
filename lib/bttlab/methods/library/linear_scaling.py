"""Linear scaling: a larger batch with a learning rate that is larger by as much."""

from dataclasses import dataclass, replace

from bttlab.methods.method import Method
from bttlab.methods.setting import Setting


@dataclass(frozen=True)
class LinearScaling(Method):
    """Multiply batch and learning rate by the same number; the rate takes longer to rise.

    Parameters
    ----------
    factor : int
        Of the batch and of the learning rate.
    warmup : float
        Part of the budget in which the rate rises.
    """

    name = "linear-scaling"
    family = "large batch"
    source = "Goyal et al., arXiv 1706.02677, sections 2.1 and 2.2"
    changes = frozenset({"batch size"})

    factor: int = 4
    warmup: float = 0.25

    def change_setting(self, setting: Setting) -> Setting:
        """Return the setting with the larger batch and rate, and the longer rise."""
        return replace(setting, batch=self.factor * setting.batch, warmup=self.warmup).scaled(self.factor)

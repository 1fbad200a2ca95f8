"""Overparameterisation: a wider model for the same samples."""

from dataclasses import dataclass, replace

from bttlab_methods.method import Method
from bttlab_methods.setting import MethodError, Setting


@dataclass(frozen=True)
class Width(Method):
    """Make the model wider or narrower: hidden size and heads times a factor, a head's size as before.

    In tensor format the greatest mode of the hidden size grows, the ranks stay.

    Parameters
    ----------
    factor : float
        Of the hidden size; several runs, such as width:factor=0.5 and width:factor=2, make a sweep.
    """

    name = "width"
    family = "sparse training"
    source = "Li et al., arXiv 2002.11794, section 3 (train large)"
    changes = frozenset({"width"})

    factor: float = 1.5

    def change_setting(self, setting: Setting) -> Setting:
        """Return the setting with another hidden size.

        Raises
        ------
        MethodError
            If heads or modes are not whole numbers then.
        """
        config = setting.config
        modes = {
            name: self._greatest_scaled(name, getattr(config, name))
            for name in ("linear_out_modes", "linear_in_modes", "embedding_column_modes")
        }
        heads = self._whole("heads", config.heads)
        hidden = self._whole("hidden_size", config.hidden_size)
        return replace(setting, config=replace(config, hidden_size=hidden, heads=heads, **modes))

    def _greatest_scaled(self, name: str, modes: tuple[int, ...]) -> tuple[int, ...]:
        place = modes.index(max(modes))
        return (*modes[:place], self._whole(f"a mode of {name}", modes[place]), *modes[place + 1 :])

    def _whole(self, name: str, value: int) -> int:
        scaled = self.factor * value
        if scaled < 1 or scaled != round(scaled):
            raise MethodError(
                f"width: factor is {self.factor}: it makes {name} {scaled:g} of {value}, which must be a whole number "
                "of at least 1; take 0.5, 1.5 or 2"
            )
        return round(scaled)

"""Configuration of a user's PyTorch module, the counterpart of `ModelConfig` for the paper's transformer."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import Field

from bttlab.model.config import ConfigError, ModelConfig, Parametric
from bttlab.util.settings import Count, settings

MOST = 1 << 24  # largest value of a size
Size = Annotated[Count, Field(ge=1, le=MOST)]


@settings(ConfigError)
class ModuleConfig(Parametric):
    """A module's sample format, parameter shapes and source file, without its code.

    Parameters
    ----------
    module : str
        File and class, such as "my_net.py:Net".
    module_sha256 : str
        SHA-256 of the file; empty if there is no file.
    tasks : list of {"classification", "tagging", "language model"}
        Of each output of `forward`, in order: a label for each sample, a label for each token, or the next token.
    sequence_length, vocabulary_size, intents, slots : int
        As in `ModelConfig`; 1 if the model has no such output.
    shapes : dict of str to list of int
        Shapes of the parameters, by their names.
    frozen : list of str
        Parameters that are not trained.
    least_token : {0, 1}
        Smallest word inside a sample: 1 if `forward` takes word 0 as padding.
    padding_token : int, optional
        Word that no sample has, since `forward` takes it as padding or does not train its row.
    token_types : int
        Number of types, such as first and second sentence: a token id is type * `vocabulary_size` + word.
    ignore_index : {0, -100}, optional
        Slot label that the loss leaves out: 0 (PAD of a corpus) or -100, which is none of the classes.

    Raises
    ------
    ConfigError
        If a value is invalid.
    """

    module: str
    module_sha256: str
    tasks: Annotated[list[Literal["classification", "tagging", "language model"]], Field(min_length=1)]
    sequence_length: Annotated[Count, Field(ge=2, le=MOST)]
    vocabulary_size: Size
    intents: Size
    slots: Size
    shapes: dict[str, list[int]]
    frozen: list[str] = Field(default_factory=list)
    least_token: Annotated[Count, Field(ge=0, le=1)] = 0
    padding_token: Annotated[Count, Field(ge=1)] | None = None
    token_types: Size = 1

    ignore_index: Literal[0, -100] | None = None

    @property
    def task(self) -> str:
        return " and ".join(sorted(self.tasks))

    @property
    def title(self) -> str:
        """Name of the module's class."""
        return self.module.rpartition(":")[2]

    @property
    def short_name(self) -> str:
        return self.title

    @property
    def slug(self) -> str:
        return self.title

    @property
    def identity(self) -> dict[str, str]:
        """Entry that identifies the model in results."""
        return {"module": self.title}

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(shape) for name, shape in self.shapes.items()}

    def to_dict(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(ModuleConfig)}
        defaults = {"least_token": 0, "padding_token": None, "token_types": 1, "ignore_index": None}
        return {key: x for key, x in values.items() if key not in defaults or x != defaults[key]}


def config_of(values: Mapping[str, Any]) -> ModelConfig | ModuleConfig:
    """Build a configuration from the result of its `to_dict`.

    Parameters
    ----------
    values : mapping
        Of `ModelConfig.to_dict` or `ModuleConfig.to_dict`.

    Returns
    -------
    ModelConfig or ModuleConfig
        The configuration.

    Raises
    ------
    ConfigError
        If a key is unknown, or a value invalid.
    """
    return ModuleConfig(**values) if "module" in values else ModelConfig(**values)

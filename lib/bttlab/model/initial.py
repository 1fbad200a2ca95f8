"""Initial parameters, determined by the configuration and a seed."""

import re

import numpy as np

from bttlab.model.config import ModelConfig
from bttlab.tensor import EMBEDDING_STD, core_std, xavier_std


def initial_parameters(config: ModelConfig, seed: int) -> dict[str, np.ndarray]:
    """Draw a model's initial parameters.

    Weight matrices are normal with Xavier's standard deviation sqrt(2 / (in + out)), both embeddings with 0.02. Cores
    are drawn so that the reassembled matrix has that standard deviation (`bttlab.tensor.core_std`). Biases are 0, norm
    weights 1. NumPy's generator draws in double precision, so that every host gets the same float32 values.

    Parameters
    ----------
    config : ModelConfig
        The model.
    seed : int
        Of NumPy's generator.

    Returns
    -------
    dict of str to np.ndarray
        Float32, with the names and order of `ModelConfig.parameter_shapes`.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    shapes = config.parameter_shapes()
    parameters = {}
    for name, shape in shapes.items():
        if name.endswith(".bias"):
            parameters[name] = np.zeros(shape, np.float32)
        elif name.endswith("norm.weight"):
            parameters[name] = np.ones(shape, np.float32)
        else:
            parameters[name] = (generator.standard_normal(shape) * _std(name, shapes, config)).astype(np.float32)
    return parameters


def _std(name: str, shapes: dict[str, tuple[int, ...]], config: ModelConfig) -> float:
    if name.startswith("embedding."):
        entry_std = EMBEDDING_STD
    else:
        entry_std = xavier_std(config.hidden_size, shapes[name][0] if "head" in name else config.hidden_size)
    train = re.match(r"(.*\.cores\.)\d+$", name)
    if train is None:
        return entry_std
    return core_std([shape for other, shape in shapes.items() if other.startswith(train[1])], entry_std)

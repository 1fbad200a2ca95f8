"""SHA-256 of tensors."""

import hashlib
from collections.abc import Mapping

import numpy as np


def tensors_digest(tensors: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 over names, types, shapes and bytes of tensors, in any order.

    Parameters
    ----------
    tensors : mapping of str to np.ndarray
        By name.

    Returns
    -------
    str
        Hexadecimal.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {array.dtype.str} {np.shape(tensors[name])}\n".encode())
        digest.update(array.data)
    return digest.hexdigest()

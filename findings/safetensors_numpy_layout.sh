#!/bin/sh
# safetensors.numpy 0.8.0 stores an array by its memory, whatever the order of its axes.
# Guess: an array in Fortran order is copied to C order, or refused, as safetensors.torch does.
# Seen: it is stored without a word, and loads with other values.
# Who it hurts: who exports transposed cores or weights from NumPy.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile safetensors==0.8.0 numpy==1.26.4
"$folder/env/bin/python" - <<'PY'
import numpy as np
from safetensors.numpy import load, save

array = np.arange(6.0).reshape(2, 3)
for name, stored in (("Fortran order", np.asfortranarray(array)), ("transposed", np.ascontiguousarray(array.T).T)):
    loaded = load(save({"weight": stored}))["weight"]
    print(name, "stored", stored.tolist(), "loaded", loaded.tolist())
    assert loaded.shape == stored.shape and not np.array_equal(loaded, stored)
assert np.array_equal(load(save({"weight": np.ascontiguousarray(array)}))["weight"], array)
PY

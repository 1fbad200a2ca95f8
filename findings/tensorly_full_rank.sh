#!/bin/sh
# tensorly 0.10.0: rank=1.0 of a tensor train is not the full rank.
# Guess: rank=1.0 and rank="same" reproduce the tensor exactly.
# Seen: both mean "as many numbers as the dense tensor", rounded down: ranks 7 and 7 of 8, a relative error of 0.37.
# Who it hurts: who compares formats "at rank 1.0", or takes it for a check without loss.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile tensorly==0.10.0 numpy==1.26.4
"$folder/env/bin/python" - <<'PY'
import numpy as np
from tensorly.decomposition import tensor_train

tensor = np.random.default_rng(0).normal(size=(8, 8, 8))
found = {}
for rank in (1.0, "same", 8):
    cores = tensor_train(tensor, rank)
    error = np.linalg.norm(cores.to_tensor() - tensor) / np.linalg.norm(tensor)
    found[rank] = tuple(cores.rank), round(float(error), 2)
print(found)
assert found[1.0] == found["same"] == ((1, 7, 7, 1), 0.37) and found[8] == ((1, 8, 8, 1), 0.0)
PY

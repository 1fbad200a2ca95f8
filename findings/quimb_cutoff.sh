#!/bin/sh
# quimb 1.16.0: a cutoff is a share of the squared norm.
# Guess: cutoff=0.01 keeps a state within a relative error of about 0.01.
# Seen: the error is up to its root, 0.1 for each bond; the default of 1e-10 allows 1e-5, which is more than FP32
# rounding.
# Who it hurts: who takes a tolerance of another library over.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile quimb==1.16.0 numpy==1.26.4
"$folder/env/bin/python" - <<'PY'
import numpy as np
import quimb.tensor as qtn

rng = np.random.default_rng(0)
left, right = (np.linalg.qr(rng.normal(size=(16, 16)))[0] for _ in range(2))
matrix = left @ np.diag(0.5 ** np.arange(16.0)) @ right
state = matrix.reshape(-1) / np.linalg.norm(matrix)
found = {}
for cutoff in (0.01, 1e-4):
    made = qtn.MatrixProductState.from_dense(state, dims=[16, 16], cutoff=cutoff)
    found[cutoff] = float(np.linalg.norm(made.to_dense().reshape(-1) - state))
print("relative error by cutoff:", found)
assert all(2 * cutoff < error <= cutoff**0.5 for cutoff, error in found.items())
PY

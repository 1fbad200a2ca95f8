#!/bin/sh
# teneva 0.14.11: `e` is an absolute error in one function and a relative one in the other.
# Guess: `e` of svd and of truncate is the same: a relative error.
# Seen: svd(x, e=0.1) cuts a tensor of norm 0.1 to rank 1 and keeps one of norm 100 whole; truncate(cores, e=0.1)
# gives both the same ranks.
# Who it hurts: who compresses weights, whose norms differ from layer to layer.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile teneva==0.14.11 numpy==1.26.4
"$folder/env/bin/python" - <<'PY'
import numpy as np
import teneva

rng = np.random.default_rng(0)
tensor = rng.normal(size=(8, 8, 8))
tensor /= np.linalg.norm(tensor)
found = {}
for norm in (0.01, 100.0):
    exact = teneva.svd(norm * tensor, e=1e-14)
    cores = {"svd": teneva.svd(norm * tensor, e=0.5), "truncate": teneva.truncate(exact, e=0.5)}
    for name, made in cores.items():
        found[name, norm] = tuple(core.shape[2] for core in made)
print("ranks with e=0.5, by function and norm:", found)
assert found["svd", 0.01] == (1, 1, 1) and found["svd", 100.0] == (8, 8, 1)
assert found["truncate", 0.01] == found["truncate", 100.0] != (1, 1, 1)
PY

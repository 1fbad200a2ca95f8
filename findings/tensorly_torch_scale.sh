#!/bin/sh
# tensorly-torch 0.5.0: a factorized linear layer starts near zero.
# Guess: its weight has about the standard deviation of nn.Linear's.
# Seen: at rank 8 the weight of a 256 x 256 layer has 0.02 of it; at rank 22 it has 0.003. In a clean environment its
# import fails first: tensorly 0.10.0 needs the package "packaging" and does not declare it.
# Who it hurts: who compares training from scratch with it.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==1.26.4 tensorly==0.10.0 tensorly-torch==0.5.0 packaging==25.0
"$folder/env/bin/python" - <<'PY'
import torch
from tltorch import FactorizedLinear

torch.manual_seed(0)
dense = torch.nn.Linear(256, 256).weight.std()
found = {}
for rank in (8, 0.5):
    layer = FactorizedLinear((4, 8, 8), (8, 8, 4), rank=rank, factorization="blocktt")
    found[rank] = float(layer.weight.to_matrix().std() / dense)
print("std of the weight over nn.Linear's:", found)
assert 0.01 < found[8] < 0.05 and 0.001 < found[0.5] < 0.01
PY

#!/bin/sh
# torch 2.13.0: FlopCounterMode finds nothing in an encoder layer under no_grad.
# Guess: the count of a forward pass is the same with and without gradients.
# Seen: in eval() under no_grad the layer is one fused operation that the counter does not know: 0 FLOPs, without a
# word.
# Who it hurts: who counts inference of transformers.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==1.26.4
"$folder/env/bin/python" - <<'PY'
import torch
from torch.utils.flop_counter import FlopCounterMode

layer, x = torch.nn.TransformerEncoderLayer(64, 4, 256, batch_first=True).eval(), torch.randn(1, 32, 64)
with FlopCounterMode(display=False) as with_gradients:
    layer(x)
with torch.no_grad(), FlopCounterMode(display=False) as without:
    layer(x)
print(with_gradients.get_total_flops(), "FLOPs with gradients,", without.get_total_flops(), "under no_grad")
assert with_gradients.get_total_flops() > 3_000_000 and without.get_total_flops() == 0
PY

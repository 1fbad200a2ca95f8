#!/bin/sh
# torch 2.13.0: GELU of one number depends on how many elements stand beside it.
# Guess: an elementwise function gives the same bits for a value in any tensor.
# Seen: the kernel for whole vectors and the one for the rest differ: by 1e-4 relative at -3 (AVX2), and at -5.5 one of them
# is 0.
# Who it hurts: who compares a machine's bits, or gradients, with PyTorch on a CPU.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==1.26.4
ATEN_CPU_CAPABILITY=avx2 "$folder/env/bin/python" - <<'PY'
import torch

torch.set_num_threads(1)
gelu = torch.nn.functional.gelu
found = {}
for value in (-3.0, -5.536):
    alone, among = gelu(torch.tensor([value])).item(), gelu(torch.full((64,), value))[0].item()
    found[value] = alone, among, abs(alone - among) / max(abs(alone), abs(among))
    print(f"gelu({value}): {alone:.9g} alone, {among:.9g} among 64, {found[value][2]:.1g} apart")
assert 1e-5 < found[-3.0][2] < 1e-3 and found[-5.536][2] > 0.5
PY

#!/bin/sh
# torch 2.13.0: einsum of three operands takes another order, and gives other bits, where opt_einsum is installed.
# Guess: the order is the one that is written, from left to right.
# Seen: with opt_einsum importable, as beside many libraries of tensors, the order is searched. The same call then
# gives other floats.
# Who it hurts: who compares results of tensor networks between two environments with the same torch.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==1.26.4 opt_einsum==3.4.0
"$folder/env/bin/python" - <<'PY'
import subprocess
import sys

CODE = """
import sys
if sys.argv[1] == "without":
    sys.modules["opt_einsum"] = None
import torch
torch.manual_seed(0)
a, b, c = torch.randn(12, 8, 12), torch.randn(12, 8, 12), torch.randn(12, 12, 1)
print(torch.einsum("aib,bjc,ckd->aijkd", a, b, c).numpy().tobytes().hex())
"""
bits = [subprocess.run([sys.executable, "-c", CODE, case], capture_output=True, text=True, check=True).stdout for case in ("with", "without")]
print("bits are equal:", bits[0] == bits[1])
assert bits[0] != bits[1]
PY

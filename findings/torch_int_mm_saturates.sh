#!/usr/bin/env bash
# torch._int_mm, PyTorch 2.13.0 on x86-64: the product of two int8 matrices is wrong without VNNI, without a word.
# oneDNN then adds pairs of products in 16 bits, which saturate. Seen: 64 x 127 x 127 = 1,032,256 comes out as 8,160
# with ONEDNN_MAX_CPU_ISA=AVX2, SSE41 or AVX512_CORE; it is right with AVX512_CORE_VNNI.
# Fails if a later build is right, or wrong with VNNI, too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numpy==1.26.4 torch==2.13.0
cat >"$folder/product.py" <<'PY'
import torch

largest = torch.full((32, 64), 127, dtype=torch.int8)
found = torch._int_mm(largest, largest.t())[0, 0].item()
print(torch.__version__, found, "right" if found == 64 * 127**2 else f"wrong by {64 * 127**2 - found}")
PY
with() { ONEDNN_MAX_CPU_ISA=$1 "$folder/venv/bin/python" "$folder/product.py"; }
without_vnni=$(with AVX2)
echo "$without_vnni"
[[ $without_vnni == *wrong* ]]
if grep -q avx512_vnni /proc/cpuinfo; then
  with_vnni=$(with AVX512_CORE_VNNI)
  echo "$with_vnni"
  [[ $with_vnni == *right ]]
fi

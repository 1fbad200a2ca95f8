#!/bin/sh
# PYNQ 4.0.0: its probe for Alveo cards is empty.
# Guess: a host with XRT and a U50 has it in pynq.Device.devices, as with PYNQ 3.0.1.
# Seen: XrtDevice._probe_ returns [] whatever is there; a warning asks whether the XRT environment is sourced.
# Who it hurts: owners of Alveo cards who upgrade: programs that fall back to an emulation do so without a word of the
# card.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile pynq==4.0.0
"$folder/env/bin/python" - <<'PY'
import inspect
import warnings

warnings.simplefilter("ignore")
from pynq.pl_server.xrt_device import XrtDevice

source = inspect.getsource(XrtDevice._probe_)
print(source)
lines = [line.strip() for line in source.splitlines() if line.strip() and not line.strip().startswith("#")]
assert lines == ["@classmethod", "def _probe_(cls):", "return []"]
PY

#!/bin/sh
# PYNQ 4.0.0 with NumPy 2, against its metadata: it imports, and no buffer can be made.
# Guess: its metadata (numpy<2) is cautious, and the code runs with NumPy 2.
# Seen: PynqBuffer sets its attribute `device`. Arrays of NumPy 2 have one, read-only: AttributeError. With NumPy 1 the
# same buffer is made.
# Who it hurts: who installs it with --no-deps, as Python 3.13 needs, which has no wheel of NumPy 1.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile pynqmetadata==0.2.0 setuptools==80.0.0 numpy==1.26.4
"$folder/env/bin/pip" install --quiet --no-compile cffi==2.1.1 tqdm==4.70.1 python-magic==0.4.27 pycparser==2.23
"$folder/env/bin/pip" install --quiet --no-compile --no-deps pynq==4.0.0 pynqutils==0.1.3 nest_asyncio==1.6.0
cat > "$folder/make.py" <<'PY'
import sys
import warnings

import numpy

warnings.simplefilter("ignore")
from pynq.buffer import PynqBuffer

try:
    buffer = PynqBuffer((8, 8), "f4", device="a card", device_address=4096, bo=1, coherent=False)
    buffer.freed = True
    seen = "a buffer of " + buffer.device
except AttributeError as error:
    seen = f"AttributeError: {error}"
print("NumPy", numpy.__version__, "gives", seen)
assert seen.startswith("AttributeError: attribute 'device'" if sys.argv[1] == "fails" else "a buffer of a card"), seen
PY
"$folder/env/bin/python" "$folder/make.py" works
"$folder/env/bin/pip" install --quiet --no-compile --no-deps numpy==2.4.4
"$folder/env/bin/python" "$folder/make.py" fails

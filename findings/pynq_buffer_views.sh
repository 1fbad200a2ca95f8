#!/bin/sh
# PYNQ 3.0.1: what is computed from a buffer claims a device address, and a column is synchronised as a row.
# Guess: the result of arithmetic has no device address; a view with gaps is refused by flush(), or its elements alone
# are sent.
# Seen: the result has an address computed from its place in host memory, which is in no buffer; a column of 8 floats
# sends the first 32 bytes from its place: a row. Nothing is said.
# Who it hurts: who passes buffer + 1 to a kernel, or synchronises a column.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile pynq==3.0.1 "numpy<2" "setuptools<81"
"$folder/env/bin/python" - <<'PY'
import warnings

warnings.simplefilter("ignore")
from pynq.buffer import PynqBuffer

sent = []


class Card:
    """Stands for a device: it notes what it is asked to send."""

    def flush(self, handle, offset, pointer, size):
        sent.append((offset, size))


buffer = PynqBuffer((8, 8), "f4", device=Card(), device_address=4096, bo=1, coherent=False)
buffer.freed = True  # there is no XRT that would free it
total = buffer + 1
inside = total.device_address is not None and 4096 <= total.device_address < 4096 + buffer.nbytes
print("buffer + 1 is a", type(total).__name__, "with a device address, in the buffer:", inside)
assert isinstance(total, PynqBuffer) and total.device_address is not None and not inside
buffer[:, 1].flush()
print("buffer[:, 1].flush() sends (offset, bytes)", sent[-1])
assert sent[-1] == (4, 32)
PY

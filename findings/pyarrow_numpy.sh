#!/usr/bin/env bash
# pyarrow 26.0.1 needs NumPy 2 and does not declare it: pip installs it beside NumPy 1.26.4, and its import fails.
# pyarrow 25.0.1 works with NumPy 1.26.4. Seen: "ImportError: pyarrow requires NumPy 2.0 or newer, found 1.26.4".
# Fails if a later build imports, or if pip refuses the pair.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numpy==1.26.4 pyarrow==25.0.1
"$folder/venv/bin/python" -c "import pyarrow, pyarrow.parquet; print(pyarrow.__version__, 'imports')"
"$folder/venv/bin/pip" install --quiet numpy==1.26.4 pyarrow==26.0.1
"$folder/venv/bin/pip" check
said=$("$folder/venv/bin/python" -c "import pyarrow" 2>&1 || true)
echo "${said##*$'\n'}"
[[ $said == *"requires NumPy 2.0 or newer"* ]]

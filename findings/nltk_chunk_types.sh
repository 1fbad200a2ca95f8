#!/bin/sh
# nltk 3.10.4: conllstr2tree drops chunks of all types but three.
# Guess: chunks of any type are read.
# Seen: only NP, PP and VP are, by default; a chunk of another type becomes plain words. Nothing is said.
# Who it hurts: who reads slots or named entities with it.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile nltk==3.10.4
"$folder/env/bin/python" - <<'PY'
from nltk.chunk.util import conllstr2tree

tree = conllstr2tree("new N B-city\nyork N I-city\nto N O\nlima N B-NP")
found = [part.label() for part in tree if hasattr(part, "label")]
print("chunks:", found)
assert found == ["NP"]
PY

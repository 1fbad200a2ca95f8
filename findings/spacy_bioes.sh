#!/bin/sh
# spaCy 3.8.14: its converter of CoNLL files splits chunks in BIOES.
# Guess: E- and S- are read as the end of a chunk and a chunk of one word, as in BILUO, which spaCy itself uses.
# Seen: E- begins a chunk of its own: "new york" becomes two entities. Nothing is said.
# Who it hurts: who brings a corpus in BIOES to spaCy.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile spacy==3.8.14
"$folder/env/bin/python" - <<'PY'
from spacy.training.converters import conll_ner_to_docs

text = "lima S-city\nor O\nnew B-city\nyork E-city\n"
found = [(span.text, span.label_) for doc in conll_ner_to_docs(text, n_sents=1, no_print=True) for span in doc.ents]
print(found)
assert found == [("lima", "city"), ("new", "city"), ("york", "city")]
PY

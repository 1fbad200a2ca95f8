#!/bin/sh
# transformers 5.23.0: a model made from a configuration alone has the dtype of the checkpoint that the configuration
# came from.
# Guess: from_config makes a new model in FP32; only weights that are loaded have a dtype of their own.
# Seen: AutoModel.from_config of a configuration with "bfloat16" makes BF16 parameters, BertModel(config) FP32 ones.
# Who it hurts: who trains from scratch with the config.json of a model on the hub.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==1.26.4 transformers==5.23.0
"$folder/env/bin/python" - <<'PY'
from transformers import AutoModel, BertConfig, BertModel

config = BertConfig(
    hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=50, dtype="bfloat16"
)
found = {"from_config": str(AutoModel.from_config(config).dtype), "BertModel": str(BertModel(config).dtype)}
print(found)
assert found == {"from_config": "torch.bfloat16", "BertModel": "torch.float32"}
PY

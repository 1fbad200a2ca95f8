#!/bin/sh
# pytorch_optimizer 4.1.0: Lamb with adam=True is not Adam, and options that do not exist are accepted.
# Guess: a group with adam=True takes the steps of torch.optim.Adam, and an unknown option raises TypeError.
# Seen: the first step is 32 times Adam's; with adam_debias=True 3.2 times. Any keyword is accepted without a word.
# Who it hurts: who gives biases and norms to the group that LAMB leaves to Adam; who misspells an option.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==1.26.4 pytorch_optimizer==4.1.0
"$folder/env/bin/python" - <<'PY'
import torch
from pytorch_optimizer import Lamb, Lion


def first_step(make):
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = make([parameter])
    parameter.grad = torch.full((4,), 1e-2)
    optimizer.step()
    return (1 - parameter[0].item()) / 1e-3


adam = first_step(lambda p: torch.optim.Adam(p, lr=1e-3))
plain = first_step(lambda p: Lamb(p, lr=1e-3, adam=True, eps=1e-8))
debias = first_step(lambda p: Lamb(p, lr=1e-3, adam=True, eps=1e-8, adam_debias=True))
print(f"first step over the rate: Adam {adam:.2f}, Lamb(adam=True) {plain:.2f}, with adam_debias=True {debias:.2f}")
assert abs(adam - 1) < 0.01 and abs(plain - 31.6) < 0.4 and abs(debias - 3.16) < 0.04
misspelled = Lion([torch.nn.Parameter(torch.ones(2))], wieght_decay=0.1)
print("Lion(wieght_decay=0.1) has", {name: misspelled.defaults[name] for name in ("weight_decay", "wieght_decay")})
assert misspelled.defaults["weight_decay"] == 0
PY

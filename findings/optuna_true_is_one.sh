#!/bin/sh
# optuna 5.0.0: a grid of 1, True and "1" has no True.
# Guess: three choices that differ in type are three trials.
# Seen: equal choices are one: True is given as 1, so the grid runs 1 twice and True never. Nothing is said.
# Who it hurts: who sweeps over switches beside numbers: [True, 1], [0, False], [1, 1.0].
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile optuna==5.0.0
"$folder/env/bin/python" - <<'PY'
import warnings

import optuna

warnings.simplefilter("ignore")
optuna.logging.set_verbosity(optuna.logging.ERROR)
choices = [1, True, "1"]
study = optuna.create_study(sampler=optuna.samplers.GridSampler({"choice": choices}, seed=0))
study.optimize(lambda trial: float(trial.suggest_categorical("choice", choices) is True), n_trials=9)
found = sorted(repr(trial.params["choice"]) for trial in study.trials)
print("choices that ran:", found)
assert found == ["'1'", "1", "1"]
PY

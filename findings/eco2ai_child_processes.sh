#!/bin/sh
# eco2ai 0.3.12: its default leaves out child processes.
# Guess: the default counts the processor time of the program with its worker processes.
# Seen: cpu_processes="current" reads 0 % while four child processes work.
# Who it hurts: who measures training with data loaders, sweeps or several processes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile eco2ai==0.3.12 setuptools==80.9.0
"$folder/env/bin/python" - <<'PY'
import subprocess
import sys
import time
import warnings

warnings.simplefilter("ignore")
from eco2ai.tools.tools_cpu import CPU

children = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
try:
    meter = CPU(cpu_processes="current", ignore_warnings=True)
    found = []
    for _ in range(3):
        time.sleep(1)
        found.append(meter.get_cpu_percent())
finally:
    for child in children:
        child.kill()
        child.wait()
print("share of the processors, while four children work:", found)
assert max(found) < 0.1
PY

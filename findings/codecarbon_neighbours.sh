#!/bin/sh
# codecarbon 3.3.2: by default a sleeping program is charged for its neighbours.
# Guess: without a power meter the energy is the program's processor time times the power of a core.
# Seen: tracking_mode="machine", the default, charges the whole machine's load: nearly full power to a program that
# sleeps while others work. tracking_mode="process" charges it next to nothing.
# Who it hurts: who compares energies on a shared host.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile codecarbon==3.3.2
"$folder/env/bin/python" - <<'PY'
import os
import subprocess
import sys
import time

from codecarbon import OfflineEmissionsTracker

MEASURE = """
import sys, time
from codecarbon import OfflineEmissionsTracker
options = {"country_iso_code": "FRA", "measure_power_secs": 1, "save_to_file": False, "log_level": "critical"}
tracker = OfflineEmissionsTracker(**options, tracking_mode=sys.argv[1], force_cpu_power=100, allow_multiple_runs=True)
tracker.start(); time.sleep(6); tracker.stop()
print(tracker.final_emissions_data.cpu_energy * 3.6e6 / 600)
"""
busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
try:
    time.sleep(1)
    found = {
        mode: float(subprocess.run([sys.executable, "-c", MEASURE, mode], capture_output=True, text=True).stdout.split()[-1])
        for mode in ("machine", "process")
    }
finally:
    for process in busy:
        process.kill()
        process.wait()
print("share of the CPU's power that a sleeping program is charged with:", found)
assert found["machine"] > 0.8 and found["process"] < 0.1
PY

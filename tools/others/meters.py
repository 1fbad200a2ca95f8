"""What energy meters charge a program with: beside busy neighbours while it sleeps, and whether for child processes.

RAPL meters read a counter that is made here, of 100 W; the others compute from a power of the CPU and from its load.
"""

import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from probe import main, row

SECONDS, WATTS = 6.0, 100.0
BUSY = [sys.executable, "-c", "while True: pass"]
METERS: dict[str, Callable[[], float]] = {}


@contextmanager
def busy_processes():
    """Occupy each processor with a process."""
    made = [subprocess.Popen(BUSY) for _ in range(os.cpu_count() or 1)]
    time.sleep(1)
    try:
        yield
    finally:
        for process in made:
            process.kill()
            process.wait()


def meter(name: str) -> Callable:
    """Make a function a meter: it sleeps for SECONDS and returns the share of the CPU's power that it found."""

    def register(measure: Callable[[], float]) -> Callable[[], float]:
        METERS[name] = measure
        return measure

    return register


def charged(name: str) -> dict:
    """Return what a meter charges a program of its own with, in both cases."""

    def measured(case: str) -> list[float]:
        done = subprocess.run([sys.executable, __file__, name, case], capture_output=True, text=True, check=True)
        return [float(number) for number in done.stdout.splitlines()[-1].split()]

    with busy_processes():
        (asleep,) = measured("sleep")
    of_children, used = measured("children")
    return {"sleeps beside busy neighbours": asleep, "child processes": "yes" if of_children > used / 2 else "no"}


def codecarbon(mode: str) -> float:
    from codecarbon import OfflineEmissionsTracker

    options = {"country_iso_code": "FRA", "measure_power_secs": 1, "save_to_file": False, "log_level": "critical"}
    tracker = OfflineEmissionsTracker(**options, tracking_mode=mode, force_cpu_power=WATTS, allow_multiple_runs=True)
    tracker.start()
    time.sleep(SECONDS)
    tracker.stop()
    return tracker.final_emissions_data.cpu_energy * 3.6e6 / (WATTS * SECONDS)


METERS["codecarbon machine"] = lambda: codecarbon("machine")
METERS["codecarbon process"] = lambda: codecarbon("process")


def eco2ai(processes: str) -> float:
    from eco2ai.tools.tools_cpu import CPU

    cpu = CPU(cpu_processes=processes, ignore_warnings=True)
    found = []
    for _ in range(int(SECONDS)):
        time.sleep(1)
        found.append(cpu.get_cpu_percent())
    return sum(found) / len(found)


METERS["eco2ai current"] = lambda: eco2ai("current")
METERS["eco2ai all"] = lambda: eco2ai("all")


@contextmanager
def counter():
    """Yield the folder of a RAPL counter of one package that rises by WATTS."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "intel-rapl", "intel-rapl:0")
        package.mkdir(parents=True)
        (package / "name").write_text("package-0\n")
        (package / "max_energy_range_uj").write_text(f"{2**40}\n")
        begin, end = time.perf_counter(), threading.Event()

        def count():
            while not end.is_set():
                draft = package / "draft"
                draft.write_text(f"{int(1e6 * WATTS * (time.perf_counter() - begin))}\n")
                draft.replace(package / "energy_uj")
                time.sleep(0.01)

        thread = threading.Thread(target=count)
        thread.start()
        time.sleep(0.2)
        try:
            yield Path(folder)
        finally:
            end.set()
            thread.join()


@meter("zeus")
def zeus() -> float:
    from zeus.device.cpu import rapl

    with counter() as folder:
        rapl.RAPL_DIR = str(folder / "intel-rapl")
        package = rapl.RAPLCPUs().cpus[0]
        energies = [package.get_total_energy_consumption().cpu_mj]
        time.sleep(SECONDS)
        energies.append(package.get_total_energy_consumption().cpu_mj)
    return (energies[1] - energies[0]) / 1e3 / (WATTS * SECONDS)


@meter("pyJoules")
def pyjoules() -> float:
    from pyJoules.device import rapl_device

    with counter() as folder:
        rapl_device.RAPL_API_DIR = str(folder / "intel-rapl")
        device = rapl_device.RaplDevice()
        device.configure([rapl_device.RaplPackageDomain(0)])
        energies = [device.get_energy()[0]]
        time.sleep(SECONDS)
        energies.append(device.get_energy()[0])
    return (energies[1] - energies[0]) / 1e6 / (WATTS * SECONDS)


@row("codecarbon", '`EmissionsTracker`, its default: `tracking_mode="machine"`')
def codecarbon_machine() -> dict:
    return {"measures": "the machine's load", **charged("codecarbon machine")}


@row("codecarbon", '`tracking_mode="process"`')
def codecarbon_process() -> dict:
    return {"measures": "the process and its children", **charged("codecarbon process")}


@row("eco2ai", '`cpu_processes="current"`, its default')
def eco2ai_current() -> dict:
    return {"measures": "the process alone", **charged("eco2ai current")}


@row("eco2ai", '`cpu_processes="all"`')
def eco2ai_all() -> dict:
    return {"measures": "the machine's load", **charged("eco2ai all")}


@row("zeus", "`ZeusMonitor`, CPU by RAPL")
def zeus_rapl() -> dict:
    return {"measures": "the package", **charged("zeus")}


@row("pyJoules", "`RaplPackageDomain`")
def pyjoules_rapl() -> dict:
    return {"measures": "the package", **charged("pyJoules")}


if __name__ == "__main__":
    if len(sys.argv) == 3:
        if sys.argv[2] == "children":
            begin = time.perf_counter()
            with busy_processes():
                found = METERS[sys.argv[1]]()
            usage = resource.getrusage(resource.RUSAGE_CHILDREN)
            share = (usage.ru_utime + usage.ru_stime) / (time.perf_counter() - begin) / (os.cpu_count() or 1)
            print(found, share)  # others may use the processors, too
        else:
            print(METERS[sys.argv[1]]())
    else:
        main()

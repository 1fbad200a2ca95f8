"""Kill and interrupt trainings many times, and print what was found."""

import argparse
import signal
import sys
import time

from reliability import crash_resume, interrupts, training_process

TRIALS = {"crash_resume": (crash_resume.trial, 600), "interrupts": (interrupts.trial, 100)}
MOST_FAILURES = 20  # that are printed


def main(arguments: list[str] | None = None) -> int:
    """Run a command line; returns 1 if an attempt of any trial failed."""
    parser = argparse.ArgumentParser(prog="python -m reliability", description=__doc__)
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help=f"of {', '.join(TRIALS)} (default: all)")
    parser.add_argument("--count", type=int, metavar="N", help="attempts (default: each trial's own number)")
    parser.add_argument("--device", metavar="N", default="emulated", help="the number of a real card to train on")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a job in the background, and its processes
    training_process.device = options.device
    if unknown := [name for name in options.trials if name not in TRIALS]:
        parser.error(f"no trial {unknown[0]!r}; there are {', '.join(TRIALS)}")
    failed = 0
    for name in options.trials or TRIALS:
        trial, count = TRIALS[name]
        begin = time.monotonic()
        outcome = trial(options.count or count)
        print(f"{name}: {outcome.attempts} attempts, {len(outcome.failures)} failed, {time.monotonic() - begin:.0f} s")
        for what, value in outcome.figures.items():
            print(f"  {what}: {value}")
        print(*(f"  {failure}" for failure in outcome.failures[:MOST_FAILURES]), sep="\n", flush=True)
        failed += len(outcome.failures)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

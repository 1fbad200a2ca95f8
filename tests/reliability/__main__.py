"""Run trials and write docs/reliability.json and docs/reliability.md; results of trials that are not run are kept."""

import argparse
import signal
import sys
import time
from pathlib import Path

from bttlab.util.locks import changing
from reliability import report, training_process
from reliability.trials import TRIALS

DOCS = Path(__file__).resolve().parents[2] / "docs"


def main(arguments: list[str] | None = None, docs: Path = DOCS) -> int:
    """Run a command line; returns 1 if an attempt of any trial failed."""
    parser = argparse.ArgumentParser(prog="python -m reliability", description=__doc__)
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help=f"of {', '.join(TRIALS)} (default: all)")
    parser.add_argument("--count", type=int, metavar="N", help="attempts (default: each trial's own number)")
    parser.add_argument(
        "--device",
        metavar="N",
        help="the number of a real card to train on, for crash_resume and interrupts; the page stays as it is",
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a job in the background, and its processes
    training_process.device = options.device or training_process.device
    unknown = [name for name in options.trials if name not in TRIALS]
    if unknown:
        parser.error(f"no trial {unknown[0]!r}; there are {', '.join(TRIALS)}")
    failed = 0
    for name in options.trials or TRIALS:
        count = options.count or TRIALS[name].full
        begin = time.monotonic()
        outcome = TRIALS[name].run(count)
        if options.device is None:  # each at once: a later trial may take hours
            with changing(docs):
                records = report.load(docs) | {name: report.record(name, outcome, count)}
                report.save(docs, records, list(TRIALS))
        seconds = time.monotonic() - begin
        print(f"{name}: {outcome.attempts} attempts, {len(outcome.failures)} failed, {seconds:.0f} s", flush=True)
        for failure in outcome.failures[: report.MOST_FAILURES]:
            print(f"  {failure}", flush=True)
        failed += len(outcome.failures)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

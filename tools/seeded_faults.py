"""Insert faults into a copy of the library, one at a time, and report which of them the tests find.

    python tools/seeded_faults.py [NUMBER…] [--long]

Each fault replaces part of a line and names test files. Their short tests run first; with --long, their long tests run
too if the short ones miss the fault. Without numbers all faults are tried. The exit code is 1 if a fault is missed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Fault(NamedTuple):
    """A replacement in a file of lib/, and the test files to run after a change of that file."""

    file: str
    old: str
    new: str
    tests: str


FAULTS = (
    Fault("bttlab/tensor/flows.py", "dx = dy.mm(weight)", "dx = dy.mm(weight) * 1.001", "tensor_flows"),
    Fault("bttlab/tensor/flows.py", "grads.append(grad.t().mm(", "grads.insert(0, grad.t().mm(", "tensor_flows"),
    Fault("bttlab/tensor/tt.py", "after = min(limit, len", "after = min(limit - 1, len", "tensor_formats"),
    Fault("bttlab/tensor/order.py", 'merged = f"R{k}"', 'merged = f"G{k}"', "tensor_cost"),
    Fault("bttlab/model/config.py", 'shapes[f"{name}.bias"] = (labels,)', "pass", "model"),
    Fault("bttlab/model/transformer.py", "getattr(F, config.activation)", "F.relu", "model"),
    Fault("bttlab/model/transformer.py", "slot_losses.mean(1)", "slot_losses.sum(1)", "model_batches"),
    Fault("bttlab/model/reference.py", "step, moments = 0, {}", "step, moments = 1, {}", "model_reference train_run"),
    Fault("bttlab/data/samples.py", "PCG64([seed, epoch])", "PCG64([seed])", "data_samples"),
    Fault("bttlab/data/metrics.py", "guess == gold != UNK", "guess == gold", "data_samples data_tags"),
    Fault("bttlab/data/tags.py", 'after = [ids[f"B-{kind}"], i]', "after = [i]", "data_tags"),
    Fault("bttlab/runs/checkpoint.py", "digest.update(array.data)", "pass", "checkpoint"),
    Fault("bttlab/runs/checkpoint.py", "self.latest.replace(self.previous)", "pass", "checkpoint"),
    Fault(
        "bttlab/runs/schedule.py", "np.minimum(np.minimum(rates, 1.0), rise)", "np.minimum(rates, 1.0)", "train_recipe"
    ),
    Fault("bttlab/util/locks.py", "!= fcntl.F_UNLCK", "== fcntl.F_UNLCK", "locks"),
    Fault("bttlab/util/files.py", "if status.st_size > most_bytes:", "if False:", "files"),
    Fault("bttlab/compiler/timing.py", "+ latency - 1)", "+ latency - 2)", "program_steps program_hazards"),
    Fault("bttlab/compiler/timing.py", "ends[other][ended - 1] + SEEN", "ends[other][ended - 1]", "program_steps"),
    Fault(
        "bttlab/compiler/context.py",
        "self.maker[matrix].recompute(self, place)",
        "pass",
        "program_gradients program_command",
    ),
    Fault("bttlab/compiler/functions.py", "erf(", "np.tanh(", "program_gradients"),
    Fault("bttlab/card/hbm.py", "self._released.append(handle)", "pass", "emulated_memory"),
    Fault("bttlab/card/hbm.py", "length = -(-size // PAGE) * PAGE", "length = size // PAGE * PAGE", "emulated_memory"),
    Fault("bttlab/card/keeper.py", "(self._used[client.user], client.since)", "(0, client.since)", "sharing"),
    Fault(
        "bttlab/card/manifest.py",
        "return hashlib.sha256(data).hexdigest()",
        "return hashlib.sha256(data[:64]).hexdigest()",
        "emulated_overlay build",
    ),
    Fault("bttlab/estimate/power.py", '1 + c["static_per_dynamic"]', '1 - c["static_per_dynamic"]', "power estimate"),
    Fault("bttlab/estimate/work.py", "+ LOSS_INTERVAL * (tokens - 1)", "", "estimate program_command"),
    Fault(
        "bttlab/estimate/geometry.py", "* ceil(depth / URAM_WORDS))", "* (depth // URAM_WORDS))", "geometry estimate"
    ),
    Fault(
        "bttlab/baseline/modelled.py",
        "return max(arithmetic, memory, kernel.launches * floor)",
        "return arithmetic + memory + kernel.launches * floor",
        "baseline_modelled",
    ),
    Fault("bttlab/teaching/exercises/answers.py", "rel_tol=relative)", "rel_tol=10 * relative)", "exercises"),
    Fault(
        "bttlab_cost/configuration.py",
        "ADAPTER_BYTES if self.adapters or",
        "ADAPTER_BYTES if",
        "cost_gpu_model cost_model",
    ),
)


def try_fault(fault: Fault, copy: Path, long: bool) -> str:
    """Return "short" or "long", the suite that finds a fault; "missed"; or "stale" if its line does not exist."""
    path = copy / "lib" / fault.file
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if text.count(fault.old) < 1:
        return "stale"
    files = [str(path) for name in fault.tests.split() for path in copy.glob(f"**/test_{name}.py")]
    path.write_text(text.replace(fault.old, fault.new, 1), encoding="utf-8")
    try:
        for suite in ("short", "long") if long else ("short",):
            marker = "not long" if suite == "short" else "long"
            command = [sys.executable, "-m", "pytest", *"-n 0 -q -x -p no:cacheprovider".split(), "-m", marker, *files]
            folders = os.pathsep.join([str(copy / "lib"), os.environ.get("PYTHONPATH", "")])
            done = subprocess.run(command, cwd=copy, env=os.environ | {"PYTHONPATH": folders}, capture_output=True)
            if done.returncode not in (0, 5):  # 5: no test
                return suite
        return "missed"
    finally:
        path.write_text(text, encoding="utf-8")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("numbers", nargs="*", type=int, metavar="NUMBER", help=f"1 to {len(FAULTS)}; by default all")
    parser.add_argument("--long", action="store_true", help="run long tests for what the short ones miss")
    options = parser.parse_args()
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "bttlab"
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, copy / name)
        if (ROOT / "build" / "tests").is_dir():  # compiled libraries
            shutil.copytree(ROOT / "build" / "tests", copy / "build" / "tests")
        results = []
        for number in options.numbers or range(1, len(FAULTS) + 1):
            fault = FAULTS[number - 1]
            results.append(try_fault(fault, copy, options.long))
            print(f"{number:2}  {results[-1]:6}  {fault.file}: {fault.old!r} -> {fault.new!r}", flush=True)
    counts = {result: results.count(result) for result in ("short", "long", "missed", "stale")}
    print(
        "found by the short suite {short}, by the long suite alone {long}, missed {missed}, stale {stale}".format(
            **counts
        )
    )
    return int(bool(counts["missed"] + counts["stale"]))


if __name__ == "__main__":
    sys.exit(main())

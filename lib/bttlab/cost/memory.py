"""The largest batch that fits: found by trying, against a limit that allocation really runs into.

On a GPU the limit is the caching allocator's (`torch.cuda.set_per_process_memory_fraction`). On a CPU every trial is a
process of its own, forked from a server that has imported torch and done nothing else. It lets its data segment
(`RLIMIT_DATA`: heap and private anonymous mappings) grow by the budget, builds model and optimizer and takes two
steps, the second with AdamW's moments in place. Blocks from 64 KiB on are mapped one by one and go back to the system
when they are freed, so that the limit counts what is alive.
"""

import multiprocessing
import re
from collections.abc import Callable
from functools import partial

from bttlab.cost.configuration import BROKEN, FITS, CostError, FineTuning
from bttlab.processes import safe_path

MOST_BATCH = 4096


def parse_bytes(text: str) -> int:
    """Return the bytes that a size such as 512MiB, 24GB or 2GiB means.

    Raises
    ------
    CostError
        If it is no size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])(i?)B", text.strip())
    if match is None or not float(match[1]):
        raise CostError(f"memory {text!r}: give a size with its unit, as 512MiB or 24GB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** ("KMGT".index(match[2]) + 1))


def largest_batch(fits: Callable[[int], bool], most: int = MOST_BATCH) -> int:
    """Return the largest batch size that fits, at most `most`; 0 if not even 1 does.

    It doubles until something does not fit, then bisects.

    Parameters
    ----------
    fits : callable
        Batch size to bool; what is larger than a batch that does not fit is taken not to fit.
    most : int
    """
    good, bad = 0, 1
    while bad <= most and fits(bad):
        good, bad = bad, 2 * bad
    bad = min(bad, most + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def measure_largest_batch(config: FineTuning, device: str, budget: int) -> int:
    """Return the largest batch that trains within `budget` bytes, measured; 0 if batch 1 does not.

    Raises
    ------
    CostError
        If a trial fails for another reason than memory.
    """
    trial = _fits_cuda if device == "cuda" else _fits_cpu
    return largest_batch(partial(trial, config, budget))


def _fits_cuda(config: FineTuning, budget: int, batch: int) -> bool:
    import torch

    from bttlab.cost.training import Run

    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total))
    try:
        run = Run(config, "cuda")
        for _ in range(2):
            run.step(run.batch(batch))
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return True


def _fits_cpu(config: FineTuning, budget: int, batch: int) -> bool:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "bttlab.cost.trial"])  # or each trial would import them anew
    process = context.Process(target=_trial, args=(config, budget, batch))
    with safe_path():
        process.start()
    process.join()
    if process.exitcode == BROKEN:
        raise CostError(f"a trial with batch {batch} of {config} failed, not for want of memory; see above")
    return process.exitcode == FITS  # a signal, too, says no: some libraries abort when they get no memory


def _trial(*arguments) -> None:
    from bttlab.cost.trial import trial

    trial(*arguments)

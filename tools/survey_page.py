"""Write the table of docs/survey.md from the registry and the records of results: python tools/survey_page.py.

The record of processes, of which the page has the peaks alone, is made by
    bttlab methods run dense data-parallel zero tensor-parallel pipeline-parallel --budget 16
    --record data/methods/airline_processes.json
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pages import filled, in_per_cent, write_tables

from bttlab.util.places import ROOT
from bttlab_methods import Result, combination_name, parse
from bttlab_methods.record import PROCESSES, Results, by_methods, mean, peak, read_gone, read_records, slot_f1
from bttlab_methods.survey import GROUPS, TECHNIQUES, Technique

PAGE = ROOT / "docs" / "survey.md"
NEEDS_GPU = "needs a GPU: untried"
HEADER = ("technique", "here", "slot F1 %", "peak MB", "s/epoch", "on what it would pay, or why it is not here")


def table() -> str:
    """Return a Markdown table of all techniques, by the survey's sections."""
    results, gone = by_methods(read_records()["atis.json"]), read_gone()
    lines = [HEADER, ["---", "---", "---:", "---:", "---:", "---"], ["`dense`", "", *_numbers(results["dense"]), ""]]
    for group in GROUPS:
        lines.append([f"**{group}**", "", "", "", "", ""])
        lines += [_row(one, results, gone) for one in TECHNIQUES if one.group == group]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _row(technique: Technique, results: dict[str, list[Result]], gone: dict[str, list[Result]]) -> list[str]:
    if technique.row:
        here, found = f"`{technique.row}`", results.get(combination_name(parse(technique.row)), ())
    elif technique.gone:
        here, found = f"`{technique.gone}`, gone; measured with 0.1.0", gone[technique.gone]
    else:
        here, found = NEEDS_GPU if technique.needs_gpu else "no", ()
    note = technique.note
    if technique.row and parse(technique.row)[0].processes > 1:
        note = f"{note}; on two processes" if note else "on two processes"
    return [technique.name, here, *_numbers(found), note]


def _numbers(group: Sequence[Result]) -> list[str]:
    if not group:
        return ["", "", ""]
    return [
        in_per_cent([one.scores["test"]["slot_f1"] for one in group]),
        f"{mean(group, lambda one: one.memory['peak']['value']) / 1e6:.1f}",
        f"{mean(group, lambda one: one.seconds_per_epoch['value']):.1f}",
    ]


def counts() -> str:
    """Return how many techniques there are, in a sentence."""
    rows = sum(bool(one.row) for one in TECHNIQUES)
    gone = sum(bool(one.gone) for one in TECHNIQUES)
    gpu = sum(one.needs_gpu and not one.row and not one.gone for one in TECHNIQUES)
    rest = len(TECHNIQUES) - rows - gone - gpu
    return (
        f"Of {len(TECHNIQUES)} techniques {rows} have a row that `bttlab methods run NAME` trains. {gone} were "
        f"measured with an earlier version and are gone. {gpu} need a GPU, and {rest} are not here; "
        "the last column says why. `tools/gpu_record.py` times those that need a GPU, and 2:4 sparsity, on a machine "
        "that has one; here this is untried.\n"
    )


@dataclass(frozen=True)
class Beside:
    """What a row comes to beside another, on average over seeds."""

    rows: dict[str, list[Result]]
    reference: str = "dense"

    def points(self, name: str) -> float:
        """Return the difference of slot F1 on test, in points."""
        return 100 * (mean(self.rows[name], slot_f1) - mean(self.rows[self.reference], slot_f1))

    def part(self, name: str, value: Callable[[Result], float]) -> float:
        return mean(self.rows[name], value) / mean(self.rows[self.reference], value)

    def memory(self, name: str) -> float:
        return self.part(name, peak)

    def time(self, name: str) -> float:
        return self.part(name, lambda one: one.seconds_per_epoch["value"])

    def activations(self, name: str) -> float:
        return self.part(name, lambda one: one.memory["most"]["activations"]["value"])


def tips() -> str:
    """Return what each tip comes to: a sentence each with the numbers of the records."""
    records = read_records()
    d = Beside(by_methods(records["atis.json"]))
    processes = by_methods(Results.read(PROCESSES).results)
    megabytes = {name: mean(group, peak) / 1e6 for name, group in processes.items()}
    tensor = [100 * mean(by_methods(records[name])["tensor"], slot_f1) for name in ("atis.json", "atis_tensor.json")]
    data = ("importance-gradient", "data-pruning-early", "data-pruning-kmeans", "token-dropping")
    large = ("linear-scaling", "lars", "lamb")
    tuned = ("lora", "loretta", "adapters", "prompt-tuning")

    def range_of(value: Callable[[str], float], names: Sequence[str], form: str) -> str:
        values = sorted(map(value, names))
        return f"{values[0]:{form}} to {values[-1]:{form}}"

    lines = [
        f"**Optimizer.** Lion comes to {d.points('lion'):+.1f} points of slot F1 beside AdamW, and momentum to "
        f"{d.points('momentum'):+.1f} points with {d.memory('momentum'):.2f} of the memory.",
        f"**Initialisation.** Without LayerNorms SkipInit comes to {d.points('skipinit'):+.1f} points, ReZero to "
        f"{d.points('rezero'):+.1f}, Fixup to {d.points('fixup'):+.1f} and T-Fixup to {d.points('t-fixup'):+.1f}.",
        f"**Sparse training.** A ticket of a fifth of the weights comes to {d.points('lottery-ticket'):+.1f} points, a "
        f"model half as wide again to {d.points('width'):+.1f} for {d.memory('width'):.1f} times the memory.",
        f"**Large batches.** Batches of 32 take {range_of(d.time, large, '.2f')} of the time and come to "
        f"{range_of(d.points, large, '+.1f')} points, since half an epoch has too few steps.",
        f"**Incremental learning.** Stacking takes {d.time('stacking'):.2f} of the time and comes to "
        f"{d.points('stacking'):+.1f} points, stochastic depth {d.time('stochastic-depth'):.2f} and "
        f"{d.points('stochastic-depth'):+.1f} points.",
        f"**Choosing data.** Choices of utterances or words come to {range_of(d.points, data, '+.1f')} points and take "
        f"{range_of(d.time, data, '.2f')} times as long.",
        f"**Parallelism.** One process takes {megabytes['dense']:.0f} MB; with the same scores, one of two takes "
        f"{megabytes['zero']:.0f} MB with ZeRO, {megabytes['tensor-parallel']:.0f} MB with tensor parallelism, and "
        f"{megabytes['pipeline-parallel']:.0f} MB as the first stage of a pipeline.",
        f"**Less memory.** The 8-bit optimizer takes {d.memory('8bit-optimizer'):.2f} of the peak; rematerialisation "
        f"keeps {d.activations('rematerialisation'):.2f} and compressed activations "
        f"{d.activations('compressed-activations'):.2f} of the activations, a small part of it.",
        f"**Few trained parameters.** From a trained model LoRA, LoRETTA, adapters and prompts take "
        f"{range_of(d.memory, tuned, '.2f')} of the memory and come to {range_of(d.points, tuned, '+.1f')} points.",
    ]
    numbered = "".join(f"{number}. {line}\n" for number, line in enumerate(lines, 1))
    rest = (
        f"Tensor compression takes {d.memory('tensor'):.2f} of the memory and {d.time('tensor'):.2f} of the time of an "
        f"epoch. It learns less in a step: {tensor[0]:.1f} % after half an epoch. After two epochs, which take about "
        f"the time of the dense model's half, it has {tensor[1]:.1f} %.\n"
    )
    return f"{numbered}\n{rest}"


def fill(text: str) -> str:
    """Return the page with its table and sentences."""
    return filled(text, {"counts": counts(), "techniques": table(), "tips": tips()}, PAGE.name)


def main(arguments: Sequence[str] | None = None) -> int:
    return write_tables(PAGE, fill, __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main())

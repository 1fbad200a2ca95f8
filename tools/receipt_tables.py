"""Tables and sentences of README and docs/energy.md that are made from receipts."""

from pathlib import Path
from statistics import mean, stdev
from textwrap import fill

from pages import WIDTH, markdown

from bttlab.baseline import Record
from bttlab.baseline.receipt import Receipt, ReceiptQuantity
from bttlab.estimate.card import Estimate
from bttlab.util.places import ROOT

BASELINES, RACES = ROOT / "data" / "baselines", ROOT / "data" / "races"
TRAINED, LONG = "data/receipts/train_atis.json", "data/accuracy/atis.json"  # of the README's scores
RACE = ("race", "card", "cpu", "enc2-btt-cuda", "--data", "atis")


def scores() -> str:
    """Return README's scores on ATIS' test split: of a run of one epoch, and of the record of ten seeds."""
    one = Receipt.read(ROOT / TRAINED)
    long = Receipt.read(ROOT / LONG)
    which = ", earlier programs" if long.stale() else ""
    names = [name for name in long.parts if name.startswith("2-ENC tensor atis_long ")]
    rows = [
        [f"`bttlab {' '.join(one.command)}` (one seed)"],
        [f"`bttlab train --encoders 2 --data atis --recipe atis_long` (96 epochs, ten seeds{which})"],
    ]
    for score in ("intent_accuracy", "slot_f1"):
        rows[0].append(f"{100 * one.figures[f'test.{score}'].value:.1f} %")
        found = [100 * long.figures[f"{name}.test.{score}"].value for name in names]
        rows[1].append(f"{mean(found):.1f} ± {stdev(found):.1f} %")
    return markdown(["command", "intent accuracy", "slot F1"], rows)


def race() -> str:
    """Return README's words below the race's picture."""
    found = _racers()
    lines = [
        "All train the 2-encoder model on ATIS in one order until slot F1 on the dev split is "
        f"{100 * found[0].settings['target']:.0f} %:",
        "",
        *(f"- {_racer_in_words(one)};" for one in found),
    ]
    lines[-1] = f"{lines[-1].removesuffix(';')}."
    return "\n".join([*lines, "", f"`bttlab {' '.join(RACE)}` runs it again ([energy](docs/energy.md#a-race)).", ""])


def _racer_in_words(one: Receipt) -> str:
    seconds, joules = one.figures["seconds"], one.figures.get("joules")
    energy = _joules_of(joules) if joules else "no meter for its energy"
    return f"{one.title.partition(': ')[2]}: {seconds.value:,.1f} s ({seconds.provenance}), {energy}"


def _joules_of(figure: ReceiptQuantity) -> str:
    band = "" if figure.low is None else f", {figure.low:,.0f} to {figure.high:,.0f}"
    return f"{figure.value:,.0f} J ({figure.provenance}{band})"


def races() -> str:
    """Return energy.md's table of races: every receipt of a racer."""
    rows = []
    for one in _racers():
        values = one.figures
        device = one.title.partition(": ")[2]
        seconds, joules, held = values["seconds"], values.get("joules"), values["bytes"]
        rows.append(
            [
                f"{device}",
                f"{values['samples'].value:,.0f}",
                f"{seconds.value:,.1f} ({seconds.provenance})",
                _joules_of(joules) if joules else "no meter",
                f"{held.value / 1e6:,.1f} ({held.provenance})",
            ]
        )
    return markdown(["racer", "samples", "s", "energy", "MB"], rows)


def _racers() -> list[Receipt]:
    return [Receipt.read(path) for path in sorted(RACES.glob("*.json"))]


def over_card(card: Estimate) -> str:
    """Return energy.md's sentence on the H100's measured energy over the modelled U50's."""
    joules = card.energy_per_epoch.value / card.samples
    kept = {Path(path).stem: Record.read(path) for path in BASELINES.glob("enc2-*-cuda*.json")}

    def times(name: str) -> str:
        done = kept[name]
        ratio = done.modes["graphs"].energy.per_step.value / done.batch / joules
        return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"

    return (
        fill(
            f"The modelled U50 takes {1e3 * joules:.0f} mJ for an utterance. This H100 takes "
            f"{times('enc2-btt-cuda')} times as much for BTT in graphs, {times('enc2-dense-cuda')} times for dense "
            f"training, and {times('enc2-dense-cuda-batch16')} times for dense training in batches.",
            WIDTH,
        )
        + "\n"
    )

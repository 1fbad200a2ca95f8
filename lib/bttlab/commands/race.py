"""Let the card, PyTorch and recorded GPUs train one model in one order until the dev split has a slot F1.

Each racer has its own clock: an emulated card modelled time, a CPU or GPU here measured time, a record a time that is
extrapolated from its measured mean step.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from bttlab.commands import Outcome, models
from bttlab.commands.receipts import add_receipt, check_receipt
from bttlab.util.errors import BttlabError
from bttlab.util.files import check_output
from bttlab.util.terminal import say

if TYPE_CHECKING:
    from bttlab.baseline.receipt import Receipt

ENC = models.ENCODERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "racers",
        nargs="*",
        default=["card", "cpu", "enc2-btt-cuda"],
        metavar="RACER",
        help="card, cpu, cuda, a record of data/baselines or a file of one (default: card cpu enc2-btt-cuda, an H100)",
    )
    add("--data", default="airline", metavar="NAME|PATH", help="corpus: atis, snips, airline, or a folder")
    add("--encoders", type=int, default=ENC, metavar="N", help=f"encoder blocks (default: {ENC})")
    add("--optimizer", choices=("sgd", "momentum", "adamw"), default="adamw", help="update rule (default: adamw)")
    add("--lr", type=float, default=6e-4, metavar="X", dest="learning_rate", help="learning rate (default: 6e-4)")
    add("--seed", type=int, default=0, metavar="N", help="of initial parameters and sample order (default: 0)")
    add("--target", type=float, default=0.8, metavar="F1", help="slot F1 of the dev split to stop at (default: 0.8)")
    add("--every", type=int, default=256, metavar="N", help="samples between two scores (default: 256)")
    add("--most", type=int, default=20_000, metavar="N", help="samples after which a racer gives up (default: 20,000)")
    add("--out", type=Path, metavar="DIR", help="write the receipt of each racer to DIR/RACER.json")
    add("--picture", type=Path, metavar="FILE", help="draw loss, score, energy and memory over time, as PNG")
    add_receipt(parser)


def run(options: argparse.Namespace) -> Outcome:
    check_receipt(options)
    for path, option in ((options.picture, "--picture"), (options.out and options.out / "card.json", "--out")):
        if path is not None:
            check_output(path, option)
    from bttlab.data import load_corpus
    from bttlab.model import ModelConfig
    from bttlab.runs.race import Race, RaceSetting

    names = ("data", "optimizer", "learning_rate", "seed", "target", "every", "most")
    corpus = load_corpus(options.data)
    config = models.fitted_to(corpus, options, ModelConfig(encoders=options.encoders))
    setting = RaceSetting(config=config, **{n: getattr(options, n) for n in names})
    race = Race(options.racers, setting)
    models.say_encoding(corpus, config, ("train", "dev"))
    race.run(lambda race: say(f"bttlab: {line(race, race.racers[-1])}"))
    receipts = race.receipts()
    if options.out is not None:
        for name, receipt in receipts.items():
            receipt.write(options.out / f"{Path(name).stem}.json", "--out")
    if options.receipt is not None:
        receipts[race.racers[-1].name].write(options.receipt)
    if options.picture is not None:
        from bttlab.lab.charts import to_png
        from bttlab.lab.race_figure import draw_race
        from bttlab.util.files import write_file

        picture = to_png(draw_race(race).figure, description=source_of(receipts.values()))
        write_file(options.picture, picture, "--picture")
    data = {
        "setting": {n: getattr(setting, n) for n in names},
        "racers": {
            name: {"reached": receipt.details["reached"], "device": race_of.device}
            | {key: figure.value for key, figure in receipt.figures.items()}
            for race_of, (name, receipt) in zip(race.racers, receipts.items(), strict=True)
        },
    }
    return Outcome(data, "\n".join(line(race, racer) for racer in race.racers))


def source_of(receipts: "Iterable[Receipt]") -> str:
    """Return what a picture of a race says that it is drawn from: its receipts, in the order of their titles."""
    return f"receipts {', '.join(receipt.sha256[:16] for receipt in sorted(receipts, key=lambda one: one.title))}"


def line(race, racer) -> str:
    """Return what a racer has done so far."""
    if not racer.laps:
        raise BttlabError(f"{racer.name} has not started")
    last, energy = racer.laps[-1], racer.energy
    if energy.value is None:
        joules = f"no energy ({energy.how})"
    else:
        band = f" ({energy.low:,.0f} to {energy.high:,.0f})" if energy.high is not None else ""
        joules = f"{energy.value:,.0f} J{band} ({energy.provenance})"
    mark = f"reached {race.setting.target:.0%}" if race.reached(racer) else "slot F1"
    return (
        f"{racer.name}: {mark} {100 * last.slot_f1:.1f} % after {last.samples:,} samples, "
        f"{racer.time.value:,.1f} s ({racer.time.provenance}), {joules}, {racer.memory.value / 1e6:,.1f} MB "
        f"{racer.counted} ({racer.memory.provenance})"
    )

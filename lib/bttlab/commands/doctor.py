"""Check the installation: packages, cards, overlays, corpora, GPU, energy meters."""

import argparse
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from bttlab.commands import NOTE, OK, PROBLEM, Check, Outcome
from bttlab.util.errors import BttlabError
from bttlab.util.plugins import PYNQ_BY_HAND
from bttlab.util.processes import usable_processors

NEEDED_TO_TRAIN = ("pynq", "setuptools")  # of the extra "lab"; the rest of it is for notebooks
CORPORA = ("airline", "atis", "snips")
LEAST_DISK_BYTES = 200e6
GPU_NODES = tuple(map(Path, ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")))  # NVIDIA's driver, AMD's, Windows's
NO_GPU = "none; baselines run on the CPU, or from recorded files"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no argument: the doctor examines all."""


def run(options: argparse.Namespace) -> Outcome:
    checks = examine()
    problems = sum(check.status == PROBLEM for check in checks)
    end = f"{problems} problem{'s' * (problems != 1)}" if problems else "all that is needed is here"
    data = {"usable": not problems, "checks": [asdict(check) for check in checks]}
    return Outcome(data, "\n".join([*map(str, checks), end]), int(bool(problems)))


def examine() -> list[Check]:
    return list(_examine(EXAMINATIONS))


def _examine(examinations: list[Callable[[], Iterator[Check]]]) -> Iterator[Check]:
    """Make checks; one that fails itself is a problem, and the others go on. A cause is told once."""
    told: dict[str, str] = {}  # detail of a problem: the check that told it
    for examination in examinations:
        try:
            for check in examination():
                if check.status == PROBLEM:
                    told.setdefault(check.detail, check.name)
                yield check
        except Exception as error:
            name = examination.__name__.replace("_", " ").strip()
            detail = str(error) if isinstance(error, BttlabError) else f"{type(error).__name__}: {error}"
            detail = " ".join(detail.split("\n"))
            if detail in told:
                yield Check(name, NOTE, f"not examined because of the problem with {told[detail]}")
            else:
                told[detail] = name
                yield Check(name, PROBLEM, detail)


def _xrt() -> Iterator[Check]:
    try:
        # The package checks it, too, when it is first imported.
        from bttlab.card.xrt import check_xrt, xrt_warning

        check_xrt()
    except ModuleNotFoundError:  # told under packages
        return
    except BttlabError as error:
        yield Check("xrt", PROBLEM, str(error))
        return
    if warning := xrt_warning():
        yield Check("xrt", NOTE, warning, "docs/hosts.md has a table of versions")


def _python() -> Iterator[Check]:
    yield Check("python", OK, f"{platform.python_version()}, {platform.system()} {platform.machine()}")


def _packages() -> Iterator[Check]:
    from packaging.requirements import Requirement  # slow to import

    versions, wrong, missing, needed, by_hand = {}, [], {}, {}, []
    has_pynq_4 = sys.version_info >= (3, 13) or _pynq_version().startswith("4.")
    passed_over = {"test", "sources", "lab" if has_pynq_4 else "pynq4"}
    for requirement in metadata.requires("bttlab") or ():
        parsed = Requirement(requirement)
        name, marker = parsed.name, parsed.marker
        extra = next(iter(re.findall(r'extra == "(\w+)"', str(marker))), "")
        if name == "bttlab" or extra in passed_over:
            continue
        if marker and not marker.evaluate({"extra": extra}):  # another Python's
            continue
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            optional = extra and name not in NEEDED_TO_TRAIN
            (missing.setdefault(extra, []) if optional else wrong).append(f"{name} is not installed")
            needed.setdefault(extra if optional else "", []).append(f"'{name}{parsed.specifier}'")
            continue
        if not parsed.specifier.contains(versions[name], prereleases=True):
            wrong.append(f"{name} {versions[name]}, but bttlab needs {parsed.specifier}")
            needed.setdefault("", []).append(f"'{name}{parsed.specifier}'")
    if sys.version_info >= (3, 13):  # where no requirement names it
        versions["pynq"] = _pynq_version()
        if not versions["pynq"].startswith("4."):
            wrong.append(f"pynq is {versions['pynq'] or 'not installed'}, but this Python needs 4.0.0")
            by_hand.append(PYNQ_BY_HAND)
    if wrong:
        ways = [f"pip install {' '.join(needed[''])}"] if "" in needed else []
        way_out = f"make lab{' PYNQ=4' * has_pynq_4}, or: {' && '.join(ways + by_hand)}"
        yield Check("packages", PROBLEM, "; ".join(wrong), way_out, versions)
    else:
        named = ", ".join(f"{name} {versions[name]}" for name in ("torch", "pynq", "numpy"))
        yield Check("packages", OK, f"{len(versions)} in versions that work ({named}, …)", data=versions)
    for extra, faults in missing.items():
        way_out = f"if you want them: pip install {' '.join(needed[extra])}"
        yield Check(f"packages for {extra}", NOTE, "; ".join(faults), way_out)


def _cards() -> Iterator[Check]:
    from bttlab.card import EmulatedU50  # before pynq: it says in one line why pynq cannot be imported
    from bttlab.card.manifest import overlays_folder, read_manifest
    from bttlab.card.shells import shell_of, suits, why_unlisted

    import pynq  # isort: skip

    names = [device.name for device in pynq.Device.devices]
    data = {"devices": names}
    real = [device for device in pynq.Device.devices if not isinstance(device, EmulatedU50)]
    listed = ", ".join(f"{index} {name}" for index, name in enumerate(names))
    if not names:
        yield Check("cards", PROBLEM, "none, not even emulated", "unset BTTLAB_EMULATED_CARDS", data)
    elif real:
        yield Check("cards", OK, listed, data=data)
    elif why := why_unlisted():
        detail, _, way_out = why.partition("; ")
        yield Check("cards", PROBLEM, f"{detail}; emulated: {listed}", way_out, data)
    else:
        yield Check("cards", NOTE, f"no Alveo card; emulated: {listed}", "for a real one, install XRT", data)
    built = [entry for entry in read_manifest(overlays_folder()) if entry.kind == "hw"]
    for entry in built:
        cards = ", ".join(card.name for card in real if suits(card, entry.platform, entry.interfaces)) or "none here"
        yield Check("hw overlay", OK, f"{entry.name} is for shell {shell_of(entry.platform)}: {cards}")
    for card in real:
        if not any(suits(card, entry.platform, entry.interfaces) for entry in built):
            detail = f"no overlay is for {card.name}: training takes the emulated card, unless --require-card"
            yield Check("cards", PROBLEM, detail, "build one from hls_src (docs/vitis.md)")


def _pynq_version() -> str:
    try:
        return metadata.version("pynq")
    except metadata.PackageNotFoundError:
        return ""


def _card_class() -> Iterator[Check]:
    from bttlab.card import PyxrtCard
    from bttlab.card.xrt import CHOICE, VARIABLE, pynq_version, pyxrt_reason, why_not_pynq, xrt_version

    if VARIABLE not in os.environ:
        return
    pynq_reason, reason = why_not_pynq(), pyxrt_reason()
    if reason is None and pynq_reason is None:
        yield Check("card class", OK, f"PYNQ's XrtDevice (PYNQ {pynq_version()}, XRT {xrt_version()})")
    elif reason is None:
        yield Check("card class", NOTE, f"none: {pynq_reason}, and {CHOICE} is 0", f"unset {CHOICE}")
    elif PyxrtCard.why_none:
        way_out = "bttlab bringup looks for the cause; or take PYNQ 3.0.1: docs/hosts.md has a table"
        yield Check("card class", PROBLEM, f"none: {reason}; {PyxrtCard.why_none}", way_out)
    else:
        beside = "" if pynq_reason else ", beside PYNQ's XrtDevice"
        detail = f"PyxrtCard, on XRT's Python binding, because {reason}{beside}; no real card has been tried with it"
        yield Check("card class", NOTE, detail, "compare it with the emulated card: bttlab bringup")


def _shared_cards() -> Iterator[Check]:
    from bttlab.card.sharing import shared

    import pynq  # isort: skip

    for device in pynq.Device.devices:
        share = shared(device)
        if share is not None:
            queue = share.queue()
            names = ", ".join(f"{who} {'has the card' if has_card else 'waits'}" for who, has_card in queue)
            data = {"keeper": str(share.path), "queue": [who for who, _ in queue]}
            yield Check("shared card", OK, f"{device.name}: {names or 'the card is free'}", data=data)


def _overlays() -> Iterator[Check]:
    from bttlab.card.build import HLS_SOURCE, stale_hardware
    from bttlab.card.manifest import digest, overlays_folder, read_file, read_manifest

    folder = overlays_folder()
    entries = read_manifest(folder)
    damaged = []
    for entry in entries:
        try:
            if digest(read_file(folder / entry.file)) != entry.sha256:
                damaged.append(f"{folder / entry.file} is not the file that manifest.json lists")
        except BttlabError as error:
            damaged.append(str(error))
    data = {"folder": str(folder), "overlays": [f"{entry.name} ({entry.kind})" for entry in entries]}
    if damaged or not entries:
        yield Check(
            "overlays", PROBLEM, "; ".join(damaged) or f"none in {folder}", "fetch them again, or: make overlays", data
        )
    else:
        yield Check("overlays", OK, f"{', '.join(data['overlays'])} verified", data=data)
    if HLS_SOURCE.is_dir():
        built = [] if damaged else [f"{name} {why}" for name, why in stale_hardware(HLS_SOURCE, folder).items()]
        if built:
            yield Check("hw overlay", NOTE, "; ".join(built), "rebuild it: make -C hls_src, see docs/vitis.md")


def _corpora() -> Iterator[Check]:
    from bttlab.data import find_corpus, read_corpus
    from bttlab.data.find import corpus_places

    given = os.environ.get("BTTLAB_DATA")
    if given and not Path(given).is_dir():
        yield Check(
            "corpora", NOTE, f"BTTLAB_DATA is {given!r}, which is not a folder", "set it to the one with corpora"
        )
    for name in CORPORA:
        folder = next((place for place in corpus_places(name) if place.is_dir()), None)
        if folder is None and name != "airline":
            way_out = f"--data {name} downloads it; or put it into a folder and set BTTLAB_DATA to that folder's parent"
            yield Check(f"corpus {name}", NOTE, "not here", way_out)
            continue
        try:
            corpus = read_corpus(folder or find_corpus(name))
        except BttlabError as error:
            yield Check(f"corpus {name}", PROBLEM if name == "airline" else NOTE, str(error))
            continue
        counts = [len(corpus.train), len(corpus.dev), len(corpus.test)]
        detail = f"{corpus.folder}, {'/'.join(map(str, counts))} utterances"
        yield Check(f"corpus {name}", OK, detail, data={"folder": str(corpus.folder), "utterances": counts})


def _gpu() -> Iterator[Check]:
    if not shutil.which("nvidia-smi") and not any(map(Path.exists, GPU_NODES)):  # torch takes long to import
        yield Check("gpu", NOTE, NO_GPU)
        return
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        yield Check("gpu", OK, f"{', '.join(names)} (CUDA {torch.version.cuda})", data={"devices": names})
    elif shutil.which("nvidia-smi"):
        way_out = "for baselines on it, install the CUDA build of torch"
        yield Check("gpu", NOTE, f"there is an NVIDIA driver, but torch {torch.__version__} cannot use it", way_out)
    else:
        yield Check("gpu", NOTE, NO_GPU)


def _energy_meters() -> Iterator[Check]:
    from bttlab.baseline import rapl

    try:
        meter = rapl.RaplMeter(rapl.POWERCAP)
    except PermissionError as error:
        way_out = f"ask the administrator to make {error.filename} readable for you"
        yield Check("cpu energy", NOTE, "RAPL is there but may not be read, so a CPU's energy is left out", way_out)
    except OSError:
        yield Check("cpu energy", NOTE, "no RAPL here, so a CPU's energy is left out")
    else:
        yield Check("cpu energy", OK, f"measured by {meter.how}", data={"counters": [*map(str, meter.counters)]})


def _disk() -> Iterator[Check]:
    free = shutil.disk_usage(".").free
    status, way_out = (OK, "") if free >= LEAST_DISK_BYTES else (PROBLEM, "make room, or work in another folder")
    yield Check("disk", status, f"{free / 1e9:.1f} GB free here", way_out, {"free_bytes": free})


def _load() -> Iterator[Check]:
    load, cores = os.getloadavg()[0], usable_processors()
    busy = f": busy, so training and the notebooks take about {load / cores:.0f} times as long" * (load > 1.5 * cores)
    yield Check("load", OK, f"load {load:.1f} on {cores} cores{busy}", data={"load": load, "cores": cores})


EXAMINATIONS = [
    *(_xrt, _python, _packages, _card_class, _overlays, _cards, _shared_cards, _corpora),
    *(_gpu, _energy_meters, _disk, _load),
]

"""Cards in a sweep: a trial has its card to itself for a chunk, whoever else offers the same one.

The card is a stand-in behind PYNQ, which trains in PyTorch and fails where two processes use it at once; its lock is
the real one.
"""

import functools
import json
import os
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pynq
import pytest
from benchmarks.sweep import ChunkLog

import tiny_runs
from bttlab.card import opening, overlay
from bttlab.card.card_lock import CardLock
from bttlab.experiments.keep import flat
from bttlab.model import ReferenceTrainer
from bttlab.sweep import Sweep, open_cluster
from bttlab.sweep.spec import spec_of
from bttlab.train import CheckpointStore, tensors_digest

pytestmark = pytest.mark.long

ADDRESS = "0000:3b:00.1"


class StandIn(pynq.Device):
    """A card that PYNQ lists, with a name and a place on the bus."""

    def __init__(self) -> None:
        self.name, self.tag, self.sysfs_path = "stand_in", "xrt0", f"/sys/devices/pci0000:00/{ADDRESS}"


class OnStandIn(ReferenceTrainer):
    """What trains on it: notes each call with the lock that its process then held, and fails if it is not alone."""

    overlay_sha256, program = "0" * 64, SimpleNamespace(sha256="1" * 64)

    def __init__(self, folder: Path, device: pynq.Device):
        super().__init__(tiny_runs.CONFIG)
        self._folder, self.device = folder, device

    def load_program(self, *arguments):
        """Take any: PyTorch needs none."""

    def train(self, *arguments):
        with self._alone():
            return super().train(*arguments)

    def predict(self, *arguments):
        with self._alone():
            return super().predict(*arguments)

    @contextmanager
    def _alone(self):
        (self._folder / "in use").touch(exist_ok=False)
        with (self._folder / "calls").open("a") as calls:
            calls.write(CardLock(ADDRESS, self._folder).path.read_text() + "\n")
        yield
        (self._folder / "in use").unlink()


def install(folder: Path) -> None:
    """Put the card behind this process's PYNQ, the only real one, with its lock in a folder."""
    pynq.Device.devices.append(StandIn())
    (folder / "train.xclbin").touch()
    overlay.EmulatedU50.trust(folder / "train.xclbin")
    overlay.process_lock = functools.cache(lambda card: CardLock(card, folder))
    overlay._from_manifest = lambda name: [overlay.OverlayFile("hw", "stand_in", (), folder / "train.xclbin")]
    pynq.Overlay = lambda path, device: SimpleNamespace(
        device=device, ip_dict={"trainer_1": {}}, trainer_1=OnStandIn(folder, device)
    )
    opening.compiled_program = lambda *arguments: None  # the machine does not hold so small a model


def test_workers_that_offer_the_same_card_take_turns(tmp_path, monkeypatch):
    monkeypatch.setattr("bttlab.sweep.trials.check_fits", lambda settings: None)
    corpus = tiny_runs.write_corpus(tmp_path / "corpus")
    fixed = flat(tiny_runs.settings(corpus)) | {"device": "U50"}
    del fixed["seed"]
    spec = spec_of({"fixed": fixed, "vary": {"seed": [0, 1]}, "chunk_seconds": 0.1}, "cards")
    log = ChunkLog(tmp_path)
    with open_cluster(workers=2) as client:
        client.register_plugin(log)
        client.run(install, tmp_path)
        client.run(_offer)
        progress = Sweep(spec, tmp_path / "sweep").run(client)
        workers = set(client.run(os.getpid).values())
    assert {record.status for record in progress.records.values()} == {"complete"}
    for record in progress.records.values():
        alone = tiny_runs.train(tmp_path / "alone" / record.id, corpus, seed=record.configuration["seed"])
        found = CheckpointStore(tmp_path / "sweep" / record.id).load()[0].parameters
        assert tensors_digest(found) == alone.parameters_sha256
    calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert {call["pid"] for call in calls} == workers
    chunks = sum(event == "begin" for events in log.read().values() for _, event, _ in events)
    assert len({(call["pid"], call["since"]) for call in calls}) == chunks  # the lock was taken once for each
    assert calls == sorted(calls, key=lambda call: call["since"])


async def _offer(dask_worker) -> None:
    await dask_worker.set_resources(U50=1)

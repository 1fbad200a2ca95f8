"""Sweeps on workers: results are those of the trials alone, to the bit, whatever happens to the workers."""

import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from distributed import Client, LocalCluster

import tiny_runs
from bttlab.card import CardBusyError
from bttlab.cli import main
from bttlab.runs import CheckpointStore, Filter, RunIndex, RunRecord, read_run, tensors_digest
from bttlab.runs.files import run_lock
from bttlab.runs.keep import flat
from bttlab.sweep import ClusterError, Sweep, SweepError, open_cluster, read_spec, worker
from bttlab.sweep import cluster as cluster_module
from bttlab.sweep import run as sweep_module
from bttlab.sweep.cluster import check_cluster
from bttlab.sweep.search import Proposed
from bttlab.sweep.spec import FIGURES, spec_of
from bttlab.sweep.trials import TrialMaker
from bttlab.sweep.view import SweepView, pareto_front

RATES = [0.01, 0.04]


@pytest.fixture(scope="module")
def client():
    with open_cluster(workers=2) as client:
        yield client


def _spec(corpus, **values):
    fixed = flat(tiny_runs.settings(corpus))
    del fixed["learning_rate"], fixed["seed"]
    vary = {"learning_rate": RATES, "seed": [0, 1]}
    return spec_of({"fixed": fixed, "vary": vary, "chunk_seconds": 0.1} | values, "tiny")


def _digests(folder):
    return {
        path.parent.name: tensors_digest(CheckpointStore(path.parent).load()[0].parameters)
        for path in folder.glob("*/run.json")
    }


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory):
    """Digests of the parameters of each trial, run by itself in one piece."""
    folder, found = tmp_path_factory.mktemp("alone"), {}
    for trial in TrialMaker(_spec(corpus)).all():
        result = tiny_runs.train(folder / trial.id, corpus, **trial.varied)
        found[trial.id] = result.parameters_sha256
    return found


@pytest.mark.long
def test_results_are_those_of_the_trials_alone(client, corpus, alone, tmp_path):
    seen = []
    sweep = Sweep(_spec(corpus), tmp_path / "sweep")
    progress = sweep.run(client, lambda progress: seen.append(len(progress.records)))
    assert _digests(tmp_path / "sweep") == alone
    assert seen == sorted(seen) and seen[-1] == progress.total == len(alone)
    records = [run.record for run in RunIndex().find(Filter(["sweep=tiny"]))]
    assert {record.id for record in records} >= set(alone)
    record = read_run(tmp_path / "sweep" / progress.best.id)
    assert record.status == "complete" and record.sweep == "tiny" and "learning_rate=" in record.name
    # The model is too small for the U50, and no language model.
    known = {name for name in FIGURES["training"] if not name.startswith("u50.") and "perplexity" not in name}
    assert set(record.figures) == known
    best = max(one.value("dev.frame_accuracy") for one in progress.records.values())
    assert progress.best.value("dev.frame_accuracy") == best


@pytest.mark.long
def test_a_module_is_the_file_that_was_read_at_first(client, corpus, tmp_path):
    shutil.copy(Path(__file__).parent / "helpers" / "sample_modules.py", tmp_path / "net.py")
    vary = {"vary": {"model": ["net.py:Tagger", "net.py:Both"]}, "objective": "dev.slot_f1", "maximize": True}
    fixed = {"fixed": {"data": str(corpus), "seed": 3, "samples": 12}}
    (tmp_path / "nets.yaml").write_text(json.dumps(vary | fixed | {"chunk_seconds": 0.01}))
    alone = {}
    for name in ("Tagger", "Both"):
        options = ["--model", f"{tmp_path}/net.py:{name}", "--data", corpus, "--seed", 3, "--samples", 12]
        assert main(["train", *map(str, options), "--out", str(tmp_path / name)]) == 0
        alone[f"net.py:{name}"] = tensors_digest(CheckpointStore(tmp_path / name).load()[0].parameters)
    sweep = Sweep(read_spec(tmp_path / "nets.yaml"), tmp_path / "sweep")
    (tmp_path / "net.py").write_text("raise RuntimeError\n")
    progress = sweep.run(client)
    assert [record.error for record in progress.records.values()] == ["", ""]
    digests = _digests(tmp_path / "sweep")
    assert {record.configuration["module"]: digests[id] for id, record in progress.records.items()} == alone
    assert progress.best.value("u50.joules") > 0
    assert main(["eval", "--run", str(tmp_path / "sweep" / progress.best.id)]) == 0  # its own copy, and no --trust


@pytest.mark.long
def test_what_is_finished_stays_and_what_was_begun_goes_on(client, corpus, alone, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_module, "AHEAD", 0)  # or all trials might have ended before the sweep stops
    sweep = Sweep(_spec(corpus), tmp_path / "sweep")
    sweep.run(client, lambda progress: sweep.stop() if progress.records else None)
    before = {id: read_run(tmp_path / "sweep" / id).ended for id in sweep.progress.records}
    assert 0 < len(before) < len(alone)
    again = Sweep(_spec(corpus), tmp_path / "sweep")
    again.run(client)
    assert _digests(tmp_path / "sweep") == alone
    for id, ended in before.items():
        assert read_run(tmp_path / "sweep" / id).ended == ended


@pytest.mark.long
def test_a_worker_that_is_killed(client, corpus, alone, tmp_path):
    killed = []

    def kill(progress):
        if not killed and sum(progress.parts.values()) > 0:
            process = next(iter(client.run(os.getpid).values()))
            killed.append(process)
            os.kill(process, signal.SIGKILL)

    Sweep(_spec(corpus, chunk_seconds=0.03), tmp_path / "sweep").run(client, kill)
    assert killed and _digests(tmp_path / "sweep") == alone


@pytest.mark.long
def test_a_scheduler_that_goes_ends_the_sweep_and_the_same_command_goes_on(corpus, alone, tmp_path):
    def start() -> tuple[LocalCluster, Client]:
        cluster = LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None)
        return cluster, Client(cluster.scheduler_address)  # as another process's cluster

    def end(progress) -> None:
        if progress.records:
            cluster.close()

    cluster, client = start()
    with pytest.raises(ClusterError, match=r"the scheduler at tcp.* has gone; .* run the same command again to go on"):
        Sweep(_spec(corpus), tmp_path / "sweep").run(client, end)
    begun = _digests(tmp_path / "sweep")
    assert 0 < len(begun) and begun != alone
    client.close()
    cluster, client = start()
    with cluster, client:
        Sweep(_spec(corpus), tmp_path / "sweep").run(client)
    assert _digests(tmp_path / "sweep") == alone


@pytest.mark.long
def test_a_trial_that_diverges_fails_and_the_others_go_on(client, corpus, tmp_path):
    spec = _spec(corpus, vary={"learning_rate": [1e30, 0.01], "seed": [0]})
    progress = Sweep(spec, tmp_path / "sweep").run(client)
    status = {record.name: record.status for record in progress.records.values()}
    assert status == {"learning_rate=1e+30 seed=0": "failed", "learning_rate=0.01 seed=0": "complete"}
    assert progress.failed == 1 and progress.best.name == "learning_rate=0.01 seed=0"


@pytest.mark.long
def test_a_sweep_in_a_notebook_draws_its_trials(client, tmp_path):
    spec = spec_of({"kind": "estimate", "vary": {"clock_mhz": [100, 200], "linear_rank": [8, 12]}}, "view")
    view = SweepView(spec, tmp_path / "sweep", scheduler=client.scheduler.address, credentials=client.security)
    states = []
    view.widget.children[1].observe(lambda change: states.append(change.new), "value")
    view.start()
    view.sweep.stop()
    view.wait()
    assert all("no update since" in state for state in states[:-1]) and len(states) > 1
    assert view.trials == [] and "0 of 4 trials done; stopped" == view.widget.children[1].value
    view.start()  # goes on
    view.wait()
    assert len(view.trials) == 4
    assert all(set(trial.figures) == set(FIGURES["estimate"]) for trial in view.trials)
    for name, scale, axes in zip(("u50.seconds_per_epoch", "u50.memory_bytes"), (1, 1e-6), view._panels, strict=True):
        drawn = axes.collections[0].get_offsets().tolist()
        known = [[scale * trial.value(name), trial.value("u50.joules_per_epoch")] for trial in view.trials]
        assert sorted(drawn) == [pytest.approx(point) for point in sorted(known)]
    best = min(trial.value("u50.joules_per_epoch") for trial in view.trials)
    assert f"u50.joules_per_epoch {best:.4g} J (modelled)" in view.widget.children[1].value


def test_the_front_is_what_no_other_beats_in_both():
    points = [(1, 5), (2, 4), (2, 3), (3, 6), (4, 3)]
    assert pareto_front(points, maximize=False) == [(1, 5), (2, 3)]
    assert pareto_front(points, maximize=True) == [(1, 5), (3, 6)]


# --- cards


def test_a_trial_that_trains_elsewhere_needs_no_card(corpus, monkeypatch, tmp_path):
    monkeypatch.setattr("bttlab.sweep.trials.check_fits", lambda settings, module: None)
    fixed = {key: value for key, value in _spec(corpus).fixed.items() if key != "device"}
    spec = _spec(corpus, fixed=fixed, vary={"device": ["U50", "reference"]}, resources={"GPU": 1})
    sweep = Sweep(spec, tmp_path)
    assert [sweep.resources_of(trial) for trial in TrialMaker(spec).all()] == [{"U50": 1, "GPU": 1}, {"GPU": 1}]


def test_a_worker_takes_a_free_card_else_waits_for_its_own(monkeypatch):
    """Workers and cards of a machine are numbered alike."""
    busy, opened = {1}, []

    def open_(device, wait=0.0):
        if int(device) in busy and not wait:
            raise CardBusyError("busy")
        opened.append((device, wait))

    monkeypatch.setattr(worker, "cards", lambda: [0, 1, 2])
    monkeypatch.setattr("distributed.get_worker", lambda: SimpleNamespace(name=1))
    worker._open_card(open_)
    busy.update({0, 2})
    worker._open_card(open_)
    assert opened == [("2", 0.0), ("1", worker.CARD_WAIT_SECONDS)]


# --- what is refused before anything starts


@pytest.mark.long
def test_a_card_that_is_offered_where_there_is_none(client):
    worker = next(iter(client.scheduler_info()["workers"]))

    async def set_resources(amount, dask_worker):
        await dask_worker.set_resources(U50=amount)

    client.run(set_resources, 1, workers=[worker])
    try:
        with pytest.raises(ClusterError, match=f"{worker} offers U50, and PYNQ finds no card"):
            check_cluster(client, {"U50": 1})
    finally:
        client.run(set_resources, 0, workers=[worker])


@pytest.mark.long
def test_a_resource_that_nobody_has(client):
    with pytest.raises(ClusterError, match=r"a trial takes U50=1, and none of the \d workers"):
        check_cluster(client, {"U50": 1})


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("{resources: {GPU: 1}, vary: {seed: [0]}}", (), "a trial takes GPU=1, which no worker that starts here has"),
        ("{fixed: {device: U50}, vary: {seed: [0]}}", (), "PYNQ finds no card on this machine"),
        ("vary: {seed: [0]}", ("--workers", "0"), "give at least 1"),
        ("vary: {seed: [0]}", ("--workers", "100000"), "give at most"),
        ("vary: {seed: [0]}", ("--scheduler", "tcp://127.0.0.1:1"), "no scheduler answers"),
        ("vary: {seed: [0]}", ("--scheduler", "nonsense://x"), "no scheduler answers"),
        ("a: [", (), "is no YAML"),
        ("- 1", (), "vary"),
        ("vary: {seeed: [0]}", (), "do you mean seed"),
    ],
)
def test_what_cannot_be_swept_is_one_line_and_no_folder(text, options, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cluster_module, "CONNECT_SECONDS", 1)
    (tmp_path / "sweep.yaml").write_text(text)
    assert main(["sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "out"), *options]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_other_versions_on_a_worker(client, monkeypatch):
    here = cluster_module.identity()
    monkeypatch.setattr(cluster_module, "identity", lambda: here | {"torch": "1.0"})
    monkeypatch.setattr(client, "submit", lambda *arguments, **options: SimpleNamespace(result=lambda: here))
    with pytest.raises(ClusterError, match=r"worker tls.* has torch 2.*, this process 1\.0; give both the same"):
        check_cluster(client, {})


@pytest.mark.long
def test_a_folder_that_another_process_sweeps_in(client, corpus, tmp_path):
    with run_lock(tmp_path), pytest.raises(SweepError, match=f"another process trains in {tmp_path};"):
        Sweep(_spec(corpus), tmp_path).run(client)
    assert not list(tmp_path.glob("*/run.json"))


def test_a_sweep_sees_the_trials_that_another_process_ended_meanwhile(corpus, tmp_path, monkeypatch):
    vary = {"learning_rate": {"low": 0.001, "high": 0.1}}
    spec = _spec(corpus, search="optuna", trials=1, vary=vary)
    sweep = Sweep(spec, tmp_path)
    trial = TrialMaker(spec).make({"learning_rate": 0.05})
    record = RunRecord("training", trial.name, trial.configuration, "a device", id=trial.id, status="complete")
    (tmp_path / trial.id).mkdir()
    record.write(tmp_path / trial.id)
    monkeypatch.setattr(sweep_module, "check_cluster", lambda *arguments: None)
    monkeypatch.setattr(
        sweep_module, "_Dispatcher", lambda sweep, *arguments: SimpleNamespace(run=lambda: sweep._next())
    )
    assert sweep.run(None) is None and set(sweep.progress.records) == {trial.id}  # nothing is left to train


# --- Optuna


def test_optuna_learns_from_the_trials_before(corpus):
    vary = {"learning_rate": {"low": 0.01, "high": 1.0}, "optimizer": ["sgd", "momentum"]}
    fixed = {k: v for k, v in _spec(corpus).fixed.items() if k != "optimizer"}
    spec = _spec(corpus, search="optuna", trials=40, fixed=fixed, vary=vary, objective="loss", maximize=False)
    search, late = Proposed(spec, TrialMaker(spec)), []
    while (trial := search.next()) is not None:
        late.append(trial.varied)
        search.tell(trial, (trial.varied["learning_rate"] - 0.3) ** 2 + (trial.varied["optimizer"] == "sgd"))
    assert len(late) == 40
    assert sum(varied["optimizer"] == "momentum" for varied in late[20:]) > 12


@pytest.mark.long
def test_an_interrupted_search_goes_on(client, corpus, tmp_path):
    vary = {"learning_rate": {"low": 0.001, "high": 0.1, "log": True}, "optimizer": ["sgd", "momentum"]}
    fixed = {key: value for key, value in _spec(corpus).fixed.items() if key != "optimizer"}
    spec = _spec(corpus, search="optuna", trials=7, fixed=fixed, vary=vary)
    sweep = Sweep(spec, tmp_path / "sweep")
    sweep.run(client, lambda progress: sweep.stop() if len(progress.records) > 1 else None)
    before = {path.parent.name: read_run(path.parent) for path in tmp_path.glob("sweep/*/run.json")}
    done = {id: record.ended for id, record in before.items() if record.status == "complete"}
    assert 1 < len(done) < 7
    again = Sweep(spec, tmp_path / "sweep")
    assert set(again.progress.records) == set(done)
    again.run(client)
    after = {path.parent.name: read_run(path.parent) for path in tmp_path.glob("sweep/*/run.json")}
    assert set(before) < set(after) == set(again.progress.records) and len(after) == 7
    assert {record.status for record in after.values()} == {"complete"}
    assert {id: after[id].ended for id in done} == done
    other = _spec(corpus, search="optuna", trials=7, fixed=fixed | {"seed": 5}, vary=vary)
    assert Sweep(other, tmp_path / "sweep").progress.records == {}  # trials of another seed are none of its own


def test_optuna_that_is_not_installed(corpus, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "optuna", None)
    spec = _spec(corpus, search="optuna", trials=4)
    with pytest.raises(BaseException, match=r"pip install 'optuna>=4' .*, or take search: random"):
        Proposed(spec, TrialMaker(spec))

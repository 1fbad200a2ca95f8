"""Sweeps on workers: results are those of the trials alone, to the bit, whatever happens to the workers."""

import shutil
import subprocess
import sys
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import yaml

import tiny_runs
from bttlab.cli import main
from bttlab.commands.sweep import _outcome
from bttlab.lab.charts import pareto_front
from bttlab.lab.sweep_view import SweepView
from bttlab.runs import CheckpointError, CheckpointStore, RunError, read_run, runs_table, tensors_digest
from bttlab.runs.folder import run_lock
from bttlab.runs.metrics import MetricsLog
from bttlab.runs.recipe import flat
from bttlab.runs.record import RunRecord
from bttlab.runs.sweep import ClusterError, Sweep, open_executor
from bttlab.runs.sweep import executor as executor_module
from bttlab.runs.sweep.executor import open_to_all
from bttlab.runs.sweep.search import Search
from bttlab.runs.sweep.spec import METRICS, spec_of
from bttlab.runs.sweep.sweep import Progress
from bttlab.runs.sweep.trials import TrialMaker
from bttlab.util.quantities import measured
from processes import ask
from two_users import environment

RATES = [0.01, 0.04]


@pytest.fixture(scope="module")
def pool():
    with open_executor(workers=2) as pool:
        yield pool


def _spec(corpus, **values):
    fixed = flat(tiny_runs.settings(corpus))
    del fixed["learning_rate"], fixed["seed"]
    return spec_of({"fixed": fixed, "vary": {"learning_rate": RATES, "seed": [0, 1]}} | values, "tiny")


def _digests(folder):
    return {
        path.parent.name: tensors_digest(CheckpointStore(path.parent).load()[0].parameters)
        for path in folder.glob("*/run.json")
    }


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory):
    """Digests of the parameters of each trial, run by itself."""
    folder, found = tmp_path_factory.mktemp("alone"), {}
    maker = TrialMaker(_spec(corpus))
    for rate in RATES:
        for seed in (0, 1):
            trial = maker.make({"learning_rate": rate, "seed": seed})
            found[trial.id] = tiny_runs.train(folder / trial.id, corpus, **trial.varied).parameters_sha256
    return found


@pytest.mark.long
def test_results_are_those_of_the_trials_alone(pool, corpus, alone, tmp_path):
    seen = []
    sweep = Sweep(_spec(corpus), tmp_path / "sweep")
    progress = sweep.run(pool, lambda progress: seen.append(len(progress.records)))
    assert _digests(tmp_path / "sweep") == alone
    assert seen[-1] == progress.total == len(alone)
    assert set(runs_table([tmp_path])["id"]) == set(alone)
    record = read_run(tmp_path / "sweep" / progress.best.id)
    assert record.status == "complete" and record.sweep == "tiny" and "learning_rate=" in record.name
    # The model is too small for the U50, and no language model.
    known = {name for name in METRICS["training"] if not name.startswith("u50.") and "perplexity" not in name}
    assert set(record.figures) == known
    best = max(one.value("dev.frame_accuracy") for one in progress.records.values())
    assert progress.best.value("dev.frame_accuracy") == best


@pytest.mark.long
def test_a_worker_that_is_killed_costs_what_it_trained_since_its_last_checkpoint(corpus, tmp_path):
    spec = _spec(corpus, vary={"seed": [0]}, fixed=_spec(corpus).fixed | {"learning_rate": 0.04, "epochs": 40})
    sweep, killed = Sweep(spec, tmp_path / "sweep"), []
    trial = TrialMaker(spec).make({"seed": 0})
    metrics = tmp_path / "sweep" / trial.id / "metrics.jsonl"
    others = set(psutil.Process().children())  # workers of other tests' pools
    with open_executor(workers=1) as pool:

        def kill():
            if not killed and metrics.exists() and len(metrics.read_text().splitlines()) > 2:
                children = set(psutil.Process().children()) - others
                (worker,) = (child for child, is_one in ask(children, _is_worker).items() if is_one)
                killed.append(read_run(metrics.parent).begun)
                worker.kill()

        pool.check = kill
        sweep.run(pool)
    assert killed and read_run(metrics.parent).begun == killed[0]  # it went on; a new run would have begun later
    expected = tiny_runs.train(tmp_path / "alone", corpus, learning_rate=0.04, epochs=40).parameters_sha256
    assert _digests(tmp_path / "sweep") == {trial.id: expected}


def _is_worker(process):
    return "spawn_main" in " ".join(process.cmdline())


class _Pool:
    """An executor that breaks at some calls, in `submit` or in the result, and runs the others at once."""

    workers = 1

    def __init__(self, breaks):
        self._breaks, self._calls, self.restarts = breaks, 0, 0

    def submit(self, function, argument):
        self._calls += 1
        how, future = self._breaks(self._calls), Future()
        if how == "submit":
            raise BrokenProcessPool
        if how == "result":
            future.set_exception(BrokenProcessPool())
            return future
        try:
            future.set_result(function(argument))
        except Exception as error:
            future.set_exception(error)
        return future

    def restart(self):
        self.restarts += 1

    def begin(self):
        pass

    def check(self):
        pass


def test_no_trial_is_lost_with_the_processes_that_had_it(tmp_path):
    spec = spec_of({"kind": "estimate", "vary": {"clock_mhz": [100, 150, 200]}}, "clocks")
    pool = _Pool({1: "submit", 2: "result", 4: "submit"}.get)
    progress = Sweep(spec, tmp_path / "sweep").run(pool)
    assert (len(progress.records), progress.failed, pool.restarts) == (3, 0, 3)
    again = Sweep(spec, tmp_path / "sweep").run(_Pool(lambda call: "result"))  # none is handed out again
    assert len(again.records) == 3 and again.best.id == progress.best.id
    with pytest.raises(RunError, match=r"workers died 4 times, .* give fewer with --workers"):
        Sweep(spec, tmp_path / "other").run(_Pool(lambda call: "result"))


SLOW = 1e-9  # learning rate of a trial that does not get better


@pytest.mark.parametrize("search", ["grid", "optuna"])
def test_a_bad_trial_ends_early_and_says_why(corpus, tmp_path, search, monkeypatch):
    rates = [0.04, 0.05, 0.06, 0.07, 0.08, SLOW]
    fixed = _spec(corpus).fixed | {"epochs": 3, "seed": 0}
    values = {"vary": {"learning_rate": rates}, "fixed": fixed, "objective": "loss", "maximize": False}
    spec = _spec(corpus, **values, pruner="median", search=search, **({"trials": 6} if search == "optuna" else {}))
    if search == "optuna":  # in the order of the list
        places = iter(range(6))
        monkeypatch.setattr(
            "optuna.samplers.TPESampler.sample_independent", lambda self, study, trial, name, values: next(places)
        )
    folder = tmp_path / "sweep"
    sweep = Sweep(spec, folder)
    progress = sweep.run(_Pool(lambda call: None))
    status = {record.configuration["learning_rate"]: record.status for record in progress.records.values()}
    assert status == dict.fromkeys(rates, "complete") | {SLOW: "pruned"}
    (pruned,) = (record for record in progress.records.values() if record.status == "pruned")
    value = MetricsLog(folder / pruned.id).lines[0]["mean_loss"]
    assert pruned.error == f"loss {value:.4g} after epoch 1 is worse than the median of earlier trials"
    others = [MetricsLog(folder / id).lines[0]["mean_loss"] for id in progress.records if id != pruned.id]
    assert value > sorted(others)[2]  # the median, computed here
    assert len(MetricsLog(folder / pruned.id).lines) == 1 and pruned.ended and pruned.value("loss") == value
    assert "1 of them ended early" in progress.in_words() and progress.best.status == "complete"
    again = Sweep(spec, folder).run(_Pool(lambda call: "result"))  # nothing is handed out again
    assert len(again.records) == 6 and again.pruned == 1


@pytest.mark.long
def test_a_local_sweep_opens_no_port_and_leaves_no_folder(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    tests_process = psutil.Process()
    others = set(tests_process.children(recursive=True))  # of other tests
    before = set(tests_process.net_connections())
    opened = set()

    def look(progress):
        opened.update(set(tests_process.net_connections()) - before)
        children = set(tests_process.children(recursive=True)) - others
        opened.update(*ask(children, lambda child: child.net_connections()).values())

    with open_executor(workers=1) as pool:
        Sweep(
            _spec(corpus, vary={"seed": [0]}, fixed=_spec(corpus).fixed | {"learning_rate": 0.1}), tmp_path / "s"
        ).run(pool, look)
    assert not opened
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.long
def test_a_trial_that_diverges_fails_and_the_others_go_on(pool, corpus, tmp_path):
    spec = _spec(corpus, vary={"learning_rate": [1e30, 0.01], "seed": [0]})
    progress = Sweep(spec, tmp_path / "sweep").run(pool)
    status = {record.name: record.status for record in progress.records.values()}
    assert status == {"learning_rate=1e+30 seed=0": "failed", "learning_rate=0.01 seed=0": "complete"}
    assert progress.failed == 1 and progress.best.name == "learning_rate=0.01 seed=0"
    again = Sweep(spec, tmp_path / "sweep").run(pool)  # tries the one that failed again
    assert (len(again.records), again.failed) == (2, 1)


@pytest.mark.parametrize(
    ("maximize", "names"), [(True, "best better worse pruned failed"), (False, "worse better best pruned failed")]
)
def test_the_best_complete_trial_is_the_first_in_the_list(maximize, names, tmp_path):
    spec = spec_of({"vary": {"seed": [0]}, "objective": "dev.slot_f1", "maximize": maximize}, "s")
    progress = Progress(spec, 5)
    for name, value in (("failed", None), ("pruned", 0.5), ("better", 0.6), ("best", 0.9), ("worse", 0.2)):
        record = RunRecord("training", name, {}, "a device", name, name if name in ("failed", "pruned") else "complete")
        record.figures = {} if value is None else {"dev.slot_f1": measured(value, "1", "by hand")}
        progress.records[name] = record
    outcome = _outcome(SimpleNamespace(spec=spec, progress=progress, folder=tmp_path))
    assert [run["name"] for run in outcome.data["runs"]] == names.split()
    assert [line.split()[0] for line in outcome.text.splitlines()[:5]] == names.split()


@pytest.mark.long
def test_a_sweep_in_a_notebook_draws_its_trials(tmp_path):
    spec = spec_of({"kind": "estimate", "vary": {"clock_mhz": [100, 200], "encoders": [1, 2]}}, "view")
    view = SweepView(spec, tmp_path / "sweep", workers=1)
    view.start()
    view.sweep.stop()
    view.wait()
    assert view.trials == [] and "0 of 4 trials done; stopped" == view.widget.children[1].value
    view.start()  # goes on
    view.wait()
    assert len(view.trials) == 4
    for name, scale, axes in zip(("u50.seconds_per_epoch", "u50.memory_bytes"), (1, 1e-6), view._panels, strict=True):
        drawn = axes.collections[0].get_offsets().tolist()
        known = [[scale * trial.value(name), trial.value("u50.joules_per_epoch")] for trial in view.trials]
        assert sorted(drawn) == [pytest.approx(point) for point in sorted(known)]
    again = SweepView(spec, tmp_path / "sweep")
    assert len(again.trials) == 4 and again.widget.children[1].value == view.widget.children[1].value


def test_a_view_shows_any_error_of_its_sweep(tmp_path, monkeypatch):
    view = SweepView(spec_of({"kind": "estimate", "vary": {"clock_mhz": [100]}}, "view"), tmp_path / "sweep")
    monkeypatch.setattr(Sweep, "run", lambda *arguments: 1 / 0)
    view.start()
    view.wait()
    assert "ZeroDivisionError" in view.widget.children[1].value


def test_the_front_is_what_no_other_beats_in_both():
    points = [(1, 5), (2, 4), (2, 3), (3, 6), (4, 3)]
    assert pareto_front(points, maximize=False) == [(1, 5), (2, 3)]
    assert pareto_front(points, maximize=True) == [(1, 5), (3, 6)]


# --- clusters of the user


@pytest.fixture
def cluster(monkeypatch):
    """A Dask cluster of one worker, with certificates that Dask's configuration names."""
    import dask
    from distributed import LocalCluster

    monkeypatch.setattr(executor_module, "CONNECT_SECONDS", 30)
    with dask.config.set({"distributed.worker.daemon": True}):
        with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
            yield cluster


def _elsewhere(executor, monkeypatch):
    """Let the workers of an executor see another machine's folder where the sweep's is."""
    submit = executor.submit
    monkeypatch.setattr(executor, "submit", lambda run, task: submit(run, replace(task, inodes=[0, 0])))
    return executor


@pytest.mark.long
def test_a_cluster_trains_in_the_folder_or_sends_the_run(cluster, corpus, alone, tmp_path, monkeypatch, pool):
    """At last the scheduler goes, which ends a sweep; the same command goes on."""
    for shared in (True, False):
        folder = tmp_path / str(shared)
        with open_executor(cluster.scheduler_address) as workers:
            workers = workers if shared else _elsewhere(workers, monkeypatch)
            Sweep(_spec(corpus), folder).run(workers)
        assert _digests(folder) == alone
        files = {path.name for path in folder.glob("*/*")}
        assert files == {"run.json", "metrics.jsonl", "checkpoint.safetensors"} | (_LEFT if shared else set())
    with pytest.raises(ClusterError, match=r"run the same command again to go on"):
        with open_executor(cluster.scheduler_address) as workers:
            Sweep(_spec(corpus), tmp_path / "sweep").run(
                workers, lambda progress: cluster.close() if progress.records else None
            )
    Sweep(_spec(corpus), tmp_path / "sweep").run(pool)
    assert _digests(tmp_path / "sweep") == alone


@pytest.mark.long
@pytest.mark.parametrize("where", ["processes", "workers with the folder", "workers without it"])
def test_pruning_with_workers(cluster, pool, corpus, tmp_path, monkeypatch, where):
    """Two processes: when the last of eight trials begins, at least six have ended, and the pruner needs five."""
    rates = [0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1, SLOW]
    fixed = _spec(corpus).fixed | {"epochs": 3, "seed": 0}
    spec = _spec(corpus, vary={"learning_rate": rates}, fixed=fixed, objective="loss", maximize=False, pruner="median")
    folder = tmp_path / "sweep"
    if where == "processes":
        progress = Sweep(spec, folder).run(pool)
    else:
        with open_executor(cluster.scheduler_address) as workers:
            workers = workers if "with " in where else _elsewhere(workers, monkeypatch)
            progress = Sweep(spec, folder).run(workers)
    records = {record.configuration["learning_rate"]: record for record in progress.records.values()}
    assert len(records) == 8 and progress.failed == 0
    if "without" in where:  # the study is in the folder: nobody can be asked
        assert {record.status for record in records.values()} == {"complete"}
    else:
        assert records[SLOW].status == "pruned" and len(MetricsLog(folder / records[SLOW].id).lines) == 1
        assert "after epoch 1 is worse than the median of earlier trials" in records[SLOW].error
        assert sum(record.status == "complete" for record in records.values()) >= 5
    assert progress.best.status == "complete"
    again = Sweep(spec, folder).run(_Pool(lambda call: "result"))  # nothing is handed out again
    assert len(again.records) == 8 and again.pruned == progress.pruned


_LEFT = {"checkpoint.previous.safetensors", ".lock"}


@pytest.mark.parametrize("shared", [True, False])
def test_a_trial_of_a_worker_without_the_folder(shared, corpus, tmp_path, monkeypatch):
    shutil.copy(Path(__file__).parent / "helpers" / "sample_modules.py", tmp_path / "net.py")
    fixed = {"data": str(corpus), "samples": 4, "device": "reference", "model": f"{tmp_path}/net.py:Both"}
    spec = spec_of({"fixed": fixed, "vary": {"seed": [0], "keep": ["best"]}}, "tiny")
    pool = _Pool({}.get) if shared else _elsewhere(_Pool({}.get), monkeypatch)
    progress = Sweep(spec, tmp_path / "sweep").run(pool)
    (id,) = progress.records
    folder = tmp_path / "sweep" / id
    assert (read_run(folder).status, progress.failed) == ("complete", 0)
    assert CheckpointStore(folder).load(best=True)[0].epochs_done == 1
    assert len(MetricsLog(folder).lines) == 2 and (folder / "model.py").exists()
    assert (folder / ".lock").exists() == shared  # where it was trained
    assert main(["eval", "--run", str(folder), "--device", "reference"]) == 0


def test_a_sweep_runs_no_code_that_lies_in_a_trials_folder(corpus, tmp_path, monkeypatch):
    """A sweep that somebody else began is continued: its folder may hold a file of the name of an import."""
    monkeypatch.chdir(tmp_path)
    source = (Path(__file__).parent / "helpers" / "sample_modules.py").read_text()
    (tmp_path / "net.py").write_text(source.replace("import torch\n", "import this\n\nimport torch\n", 1))
    fixed = {"data": str(corpus), "samples": 2, "device": "reference", "model": f"{tmp_path}/net.py:Both"}
    spec = spec_of({"fixed": fixed, "vary": {"seed": [0]}}, "tiny")
    Sweep(spec, tmp_path / "sweep").run(_Pool({}.get))
    (record,) = (tmp_path / "sweep").glob("*/run.json")
    record.unlink()  # as of a trial that was cut off
    record.with_name("metrics.jsonl").unlink()
    planted = record.with_name("model_files") / "this.py"
    planted.parent.mkdir(exist_ok=True)
    planted.write_text("open('ran', 'w').close()\n")
    sweep = Sweep(spec, tmp_path / "sweep")
    del sys.modules["this"]  # as in the process of a worker
    progress = sweep.run(_Pool({}.get))
    assert not (tmp_path / "ran").exists() and progress.failed == 0 and len(progress.records) == 1
    assert main(["eval", "--run", str(planted.parents[1]), "--device", "reference"]) == 2
    assert not (tmp_path / "ran").exists()


def test_a_full_disk_is_the_reason_that_a_trial_tells(corpus, tmp_path, monkeypatch):
    def full(*arguments):
        raise CheckpointError("No space left on device")

    monkeypatch.setattr(CheckpointStore, "save", full)
    progress = Sweep(_spec(corpus), tmp_path / "sweep").run(_Pool({}.get))
    assert {record.error for record in progress.records.values()} == {"No space left on device"}


def test_a_worker_with_another_environment_ends_the_sweep(tmp_path):
    class Elsewhere(_Pool):
        def submit(self, function, one):
            return super().submit(function, replace(one, identity=one.identity | {"torch": "1.0"}))

    spec = spec_of({"kind": "estimate", "vary": {"clock_mhz": [100, 150]}}, "clocks")
    with pytest.raises(ClusterError, match=r"a worker has torch 2.*, the sweep 1\.0"):
        Sweep(spec, tmp_path / "sweep").run(Elsewhere({}.get))
    assert not list(tmp_path.glob("sweep/*/run.json"))


def test_a_worker_of_several_threads_is_refused():
    workers = {"w": {"nthreads": 4}}
    client = SimpleNamespace(
        status="running", get_executor=lambda **options: None, scheduler_info=lambda n_workers: {"workers": workers}
    )
    with pytest.raises(ClusterError, match="--nthreads 1"):
        executor_module.Cluster(client)


def test_what_is_said_of_a_cluster_without_tls(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(executor_module, "CONNECT_SECONDS", 1)
    assert open_to_all(None) == open_to_all("tls://host:8786") == ""
    (tmp_path / "sweep.yaml").write_text("vary: {seed: [0]}")
    for address in ("tcp://127.0.0.1:1", "127.0.0.1:1"):
        assert main(["sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path), "--scheduler", address]) == 2
        warning, error = capsys.readouterr().err.strip().splitlines()
        assert f"warning: {address} is not TLS" in warning and "no scheduler answers" in error


# --- what is refused before anything starts


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("{fixed: {device: U50}, vary: {seed: [0]}}", (), "device is 'U50': choose one of emulated, reference, auto"),
        ("vary: {seed: [0]}", ("--workers", "0"), "at least 1 process"),
        ("vary: {seed: [0]}", ("--scheduler", "tls://127.0.0.1:1"), "no scheduler answers"),
        ("vary: {seed: [0]}", ("--scheduler", "tls://x", "--workers", "1"), "with --scheduler leave it out"),
        ("a: [", (), "is no YAML"),
        ("vary: {seeed: [0]}", (), "do you mean seed"),
    ],
)
def test_what_cannot_be_swept_is_one_line_and_no_folder(text, options, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(executor_module, "CONNECT_SECONDS", 1)
    (tmp_path / "sweep.yaml").write_text(text)
    assert main(["sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "out"), *options]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_another_process_sweeps_in(corpus, tmp_path):
    with run_lock(tmp_path), pytest.raises(RunError, match=f"another process trains in {tmp_path};"):
        Sweep(_spec(corpus), tmp_path).run(None)
    assert not list(tmp_path.glob("*/run.json"))


@pytest.mark.long
@pytest.mark.every_python
def test_a_sweep_started_in_a_hostile_folder(tmp_path):
    """As the command does: its own folder, not this one, is where it imports from; so do the processes it starts."""
    for planted in ("multiprocessing", "distributed", "optuna"):
        (tmp_path / f"{planted}.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w').close()")
    spec = {"kind": "estimate", "fixed": {"encoders": 1}, "vary": {"clock_mhz": [100]}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(spec))
    command = tmp_path / "bin" / "bttlab"
    command.parent.mkdir()
    command.write_text("from bttlab.cli import main\nif __name__ == '__main__':\n    raise SystemExit(main())\n")
    done = subprocess.run(
        [sys.executable, str(command), "sweep", "sweep.yaml", "--workers", "1"],
        cwd=tmp_path,
        env=environment(BTTLAB_RUNS=str(tmp_path / "index")),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "run").exists()


# --- Optuna


def _search(spec, folder):
    folder.mkdir(exist_ok=True)
    search = Search(spec, TrialMaker(spec))
    return search, search.open(folder)


@pytest.fixture
def estimates(tmp_path, capsys):
    """Run a search of Optuna over estimates, up to some trials; returns the exit code and what it printed to stderr."""

    def estimates(trials):
        text = f"""
            kind: estimate
            vary: {{linear_rank: {{low: 4, high: 20}}}}
            fixed: {{encoders: 1}}
            search: optuna
            trials: {trials}
        """
        (tmp_path / "o.yaml").write_text(text)
        code = main(["sweep", str(tmp_path / "o.yaml"), "--workers", "1", "--out", str(tmp_path / "out")])
        return code, capsys.readouterr().err

    return estimates


@pytest.mark.long
@pytest.mark.parametrize("cut", [1, 12])
def test_a_log_of_optuna_whose_last_line_lost_its_end(cut, estimates, tmp_path):
    """As a full disk or a power failure leaves it; the newline alone, or more."""
    assert estimates(2)[0] == 0
    log = tmp_path / "out" / "optuna.log"
    log.write_bytes(log.read_bytes()[:-cut])
    code, said = estimates(4)
    assert code == 0 and "the last line of" in said and "was torn (" in said and "4 of 4 trials" in said
    assert all(line.endswith("}") for line in log.read_text().splitlines())
    code, said = estimates(5)
    assert code == 0 and "torn" not in said and "5 of 5 trials done" in said


@pytest.mark.long
@pytest.mark.parametrize("damage", [b"\xff", b"{", b"[]\n", b'{"op_code": 4}\n', b'{"op_code": 99}\n'])
def test_a_file_that_is_no_log_of_optuna(damage, estimates, tmp_path):
    assert estimates(1)[0] == 0
    log = tmp_path / "out" / "optuna.log"
    log.write_bytes(damage + log.read_bytes())
    code, said = estimates(2)
    assert code == 2 and "optuna.log is no log of Optuna (" in said and "; remove it, and run" in said
    assert "Traceback" not in said
    log.unlink()
    assert estimates(2)[0] == 0


def test_optuna_learns_from_the_trials_before_and_goes_on_after_a_stop(corpus, tmp_path):
    vary = {"learning_rate": {"low": 0.01, "high": 1.0}, "optimizer": ["sgd", "momentum"]}
    fixed = {k: v for k, v in _spec(corpus).fixed.items() if k != "optimizer"}
    spec = _spec(corpus, search="optuna", trials=40, fixed=fixed, vary=vary, objective="loss", maximize=False)
    ended, number = [], 0
    while True:
        if number in (0, 5, 20):  # a new process, which finds one trial that its predecessor did not end
            search, before = _search(spec, tmp_path)
            assert [trial.varied for trial in before] == ended
        if (trial := search.next()) is None:
            break
        number += 1
        if number in (5, 20):
            left = trial.varied
            continue
        if number in (6, 21):
            assert trial.varied == left
        ended.append(trial.varied)
        search.tell(trial, (trial.varied["learning_rate"] - 0.3) ** 2 + (trial.varied["optimizer"] == "sgd"))
    assert len(ended) == 40
    assert sum(varied["optimizer"] == "momentum" for varied in ended[20:]) > 12

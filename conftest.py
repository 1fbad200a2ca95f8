"""Fixtures shared by all tests: where the real corpora lie."""

import contextlib
import fcntl
import gc
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from real_corpora import real_corpus
from two_users import interpreter_of_nobody

ROOT = Path(__file__).resolve().parent
# One thread here and in what tests start: two of these processes have two cores, and threads that wait spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Without compiled files each worker, and each process that tests start, compiles torch and the lab: seconds.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A shell starts a job in the background with SIGINT ignored, and so would be all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Files whose tests take longest come first: all workers wait for what begins last.
LONGEST = (
    *("test_lab_in_browser", "test_rtl", "test_notebooks", "test_class_in_browser", "test_every_screen"),
    *("test_reliability", "test_card_pages", "test_readme", "test_fake_xrt", "test_trace_programs", "test_course"),
    *("test_wheel", "test_cost_model", "test_program_modules", "test_processor_port", "test_processor_execute"),
    *("test_flow_auto", "test_train_module", "test_program_hazards", "test_schedule", "test_trainer_overlay"),
    *("test_estimate", "test_program_sums", "test_train_run", "test_lab_dashboard", "test_sweep", "test_lab_teach"),
    *("test_layer_program", "test_runs", "test_exercises", "test_baseline", "test_program_gradients", "test_slices"),
)
OURS = r"(bttlab|test_|conftest)"  # begins the names of our modules
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LONG_ALONE = "\npytestmark = pytest.mark.long\n"


def pytest_configure(config: pytest.Config) -> None:
    """Make warnings errors in CI, and say how often a property is tried: `--hypothesis-profile=long` has more.

    Elsewhere packages may have other versions than those of the lock, and other warnings.
    """
    if os.environ.get("CI"):
        filters = config.getini("filterwarnings")
        filters.insert(0, "error")  # the later ones take precedence
        filters.append(f"error::DeprecationWarning:{OURS}")
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", 0):  # else workers run the tests
        from hypothesis import settings

        settings.register_profile("short", deadline=None, max_examples=20)
        settings.register_profile("long", deadline=None, max_examples=2000)
        settings.load_profile("short")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files alone whose tests are all long, unless they or long tests are asked for: imports take seconds."""
    named = {Path(argument.partition("::")[0]).resolve() for argument in config.args}
    if not config.getoption("markexpr").startswith("not long") or any(
        path.is_relative_to(collection_path) for path in named
    ):
        return None
    if collection_path.is_dir():
        return collection_path.name in ("browser", "hub") or None  # their fixtures import a browser
    return (collection_path.suffix == ".py" and LONG_ALONE in collection_path.read_text(encoding="utf-8")) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need real corpora, and let the longest tests come first."""
    for item in items:
        if {"atis", "snips"} & set(item.fixturenames):
            item.add_marker("corpora")
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Print as the last line how many tests were skipped, and why."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter else []
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    if reasons:
        counted = "; ".join(f"{count} because {reason}" for reason, count in reasons.items())
        reporter.write_line(f"skipped {reasons.total()}: {counted}")


@pytest.hookimpl(hookwrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Let one worker import first in a new environment: else each of them compiles torch and all others.

    The garbage collector is spared what was imported: it stays, and to look through it takes time.
    """
    gc.disable()
    with contextlib.ExitStack() as stack:
        imported = None
        with contextlib.suppress(OSError):  # an environment that this user may not change: its owner has imported
            # has a line once a worker has imported everything
            imported = stack.enter_context(open(Path(sys.prefix, ".imported"), "a"))
        if imported and hasattr(session.config, "workerinput") and not imported.tell():
            try:
                fcntl.flock(imported, fcntl.LOCK_EX | fcntl.LOCK_NB)
                imported.write("by a worker\n")
            except BlockingIOError:
                fcntl.flock(imported, fcntl.LOCK_SH)
        yield
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _torch_as_new() -> None:
    """One thread, and the same random tensors in each run, whatever the test before has set."""
    import torch  # not in the process that hands out the tests

    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _runs_of_tests(tmp_path_factory) -> None:
    """Keep the runs, the secret and the programs of tests out of the user's own; workers share the programs."""
    base = tmp_path_factory.getbasetemp()
    os.environ["BTTLAB_PROGRAMS"] = str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "programs")
    os.environ["BTTLAB_RUNS"] = str(tmp_path_factory.mktemp("runs"))
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data"))


@pytest.fixture
def no_stored_programs(monkeypatch) -> None:
    """Neither read nor write the programs that tests share: for a test that changes the compiler."""
    monkeypatch.setenv("BTTLAB_PROGRAMS", os.devnull)


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    """Keep the libraries that tests compile: the next run finds those of unchanged sources."""
    import build_library

    build_library.folder = Path(os.environ.get("BTTLAB_TEST_LIBRARIES", ROOT / "build" / "tests"))
    build_library.folder.mkdir(parents=True, exist_ok=True)


@pytest.fixture(scope="session")
def atis() -> Path:
    return real_corpus("atis")


@pytest.fixture(scope="session")
def snips() -> Path:
    return real_corpus("snips")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A corpus of a few dozen utterances, for runs of `tiny_runs`."""
    from tiny_runs import write_corpus

    return write_corpus(tmp_path_factory.mktemp("data") / "tiny")


@pytest.fixture(scope="session")
def short_airline(tmp_path_factory) -> Path:
    """The airline corpus with a few utterances in its dev and test splits: scoring all takes longer than many tests."""
    return _shortened(ROOT / "data" / "airline", tmp_path_factory.mktemp("short"), dev=20, test=20)


@pytest.fixture(scope="session")
def tiny_airline(tmp_path_factory) -> Path:
    """The airline corpus with a few utterances in each of its splits."""
    return _shortened(ROOT / "data" / "airline", tmp_path_factory.mktemp("tiny"), train=200, dev=8, test=8)


@pytest.fixture(scope="session")
def atis_lengths() -> dict[int, int]:
    """Number of utterances of ATIS's training split by tokens."""
    from bttlab.estimate.constants import read_data

    return {int(length): count for length, count in read_data("atis_lengths")["utterances_by_tokens"].items()}


def _shortened(corpus: Path, place: Path, **most: int) -> Path:
    """A copy of a corpus that keeps only the first utterances of its splits."""
    folder = shutil.copytree(corpus, place / corpus.name)
    for split, count in most.items():
        for path in (folder / split).iterdir():
            path.write_text("".join(path.read_text().splitlines(keepends=True)[:count]))
    return folder


@pytest.fixture(scope="session")
def trainer_libraries(tmp_path_factory) -> dict[str, Path]:
    """The training processor as shared libraries: "fast", the emulation, and "loop", the loop of synthesis."""
    from training_processor import build_libraries

    return build_libraries(tmp_path_factory.mktemp("libraries"))


@pytest.fixture(scope="session")
def fast(trainer_libraries):
    """The functional model, loaded."""
    from processor_native import NativeProcessor

    return NativeProcessor(trainer_libraries["fast"])


@pytest.fixture(scope="session")
def loop(trainer_libraries):
    """The loop of synthesis, loaded."""
    from processor_native import NativeProcessor

    return NativeProcessor(trainer_libraries["loop"])


@pytest.fixture
def two_users() -> None:
    """Skip the test where no process can be started as another user."""
    if os.geteuid() != 0 or interpreter_of_nobody() is None:
        pytest.skip("it takes root, and a Python that every user may run, to act as another user")


@pytest.fixture(scope="session")
def xrt(tmp_path_factory):
    """An installation of the fake XRT."""
    from fake_xrt import install

    return install(tmp_path_factory.mktemp("xrt"))


@pytest.fixture
def card(xrt, monkeypatch, tmp_path):
    """A real card: pynq's XrtDevice on the fake XRT."""
    from bttlab.card import release_card

    card = xrt.card(monkeypatch, tmp_path)
    yield card
    monkeypatch.delenv("FAKE_XRT_FAULT", raising=False)
    release_card(card)


@pytest.fixture
def pyxrt_card(xrt, monkeypatch, tmp_path):
    """A real card: our device on a fake of XRT's Python binding."""
    from bttlab.card import release_card

    card = xrt.pyxrt_card(monkeypatch, tmp_path)
    yield card
    monkeypatch.delenv("FAKE_XRT_FAULT", raising=False)
    release_card(card)


@pytest.fixture(params=["card", pytest.param("pyxrt_card", marks=pytest.mark.every_python)])
def real_card(request):
    """A real card by either class that drives one."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")  # for others its loop of events would be in the way
def browser():
    """Chromium, as the system has it."""
    from playwright.sync_api import sync_playwright

    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.fail(f"no browser here: install one of {', '.join(BROWSERS)} (apt-get install chromium)")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()

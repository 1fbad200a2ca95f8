"""A card on XRT's Python binding: our device on a fake of pyxrt, which is compared with the real one if it is here."""

import importlib.util
import inspect
import itertools
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

from bttlab.card import (
    EmulatedU50,
    OverlayError,
    PyxrtCard,
    load_overlay,
    sharing,
    shells,
)
from bttlab.card import (
    xrt as xrt_installation,
)
from bttlab.card.hbm import HbmBank
from bttlab.card.shells import card_interfaces, pcie_address
from bttlab.card.telemetry import board_power
from bttlab.commands import doctor
from bttlab.model import Optimizer
from bttlab.util.errors import BttlabError
from card_training import SAMPLES, opened, train
from keepers import keeping

from conftest import ROOT
from fake_xrt import PYTHON_FOLDER, SHELL
from training_processor import state_digest


@pytest.fixture
def trainer(pyxrt_card):
    return opened()


def test_the_card_names_itself_its_shell_and_its_power(pyxrt_card):
    assert (pyxrt_card.name, pcie_address(pyxrt_card)) == (SHELL, "0000:3b:00.1")
    assert card_interfaces(pyxrt_card) == {"862c7020a250293e32036f19956669e5"}
    assert board_power(pyxrt_card) == pytest.approx(12.1 * 1.5 + 3.3 * 0.2)
    assert pyxrt_card.device_info.mOnChipTemp == 55 and pyxrt_card.device_info.m0v85 == 0
    assert pyxrt_card.sensors["12v_pex"].power.value == pytest.approx(12.1 * 1.5)


@pytest.mark.parametrize("text", ["not JSON", "[]"])
def test_a_report_of_xrt_that_is_no_object_is_one_line(pyxrt_card, monkeypatch, text):
    monkeypatch.setattr(pyxrt_card, "_xrt_info", lambda name: text)
    with pytest.raises(OverlayError, match=r"report 'electrical' of .* is not a JSON object"):
        board_power(pyxrt_card)


def test_sensors_that_a_card_lacks_read_zero(pyxrt_card, monkeypatch):
    report = {"power_rails": [{"id": "12v_pex", "current": {"amps": "N/A"}}], "thermals": []}
    monkeypatch.setattr(pyxrt_card, "_xrt_info", lambda name: json.dumps(report))
    assert board_power(pyxrt_card) == 0 and pyxrt_card.device_info.mOnChipTemp == 0


# --- which class drives a card


@pytest.fixture
def installation(xrt, monkeypatch):
    monkeypatch.setenv("XILINX_XRT", str(xrt.root))
    monkeypatch.delenv("BTTLAB_PYXRT", raising=False)
    return xrt.root


def test_pynq_3_drives_the_card_unless_it_cannot(installation, monkeypatch, tmp_path):
    monkeypatch.setattr(xrt_installation, "pynq_version", lambda: "3.0.1")
    assert xrt_installation.pyxrt_reason() is None
    monkeypatch.setattr(xrt_installation, "CALLS", ("xclProbe", "xclOfAnotherRelease"))
    assert "libxrt_core.so lacks xclOfAnotherRelease, which PYNQ 3.0.1 calls" in xrt_installation.pyxrt_reason()
    monkeypatch.undo()
    monkeypatch.setenv("XILINX_XRT", str(tmp_path))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libxrt_core.so").write_text("not a library")
    monkeypatch.setattr(xrt_installation, "pynq_version", lambda: "3.0.1")
    assert "cannot load XRT's C library" in xrt_installation.pyxrt_reason()


@pytest.mark.parametrize(
    ("choice", "version", "reason"),
    [
        (None, "4.0.0", "PYNQ 4.0.0 lists no Alveo card"),
        ("0", "4.0.0", None),
        ("1", "3.0.1", "BTTLAB_PYXRT is 1"),
        ("0", "3.0.1", None),
    ],
)
def test_the_class_may_be_chosen(installation, monkeypatch, choice, version, reason):
    monkeypatch.setattr(xrt_installation, "pynq_version", lambda: version)
    if choice:
        monkeypatch.setenv("BTTLAB_PYXRT", choice)
    assert xrt_installation.pyxrt_reason() == reason
    monkeypatch.delenv("XILINX_XRT")
    assert xrt_installation.pyxrt_reason() is None
    monkeypatch.setenv("BTTLAB_PYXRT", "yes")
    with pytest.raises(BttlabError, match="BTTLAB_PYXRT is 'yes': 0 lists no card through pyxrt, 1"):
        xrt_installation.pyxrt_reason()


@pytest.mark.parametrize(
    ("files", "cause"),
    [
        ([], "has none; install an XRT that has it"),
        (["pyxrt.cpython-38-x86_64-linux-gnu.so"], r"has pyxrt.cpython-38-.*, for another Python than this Python 3\."),
        ([f"pyxrt{importlib.machinery.EXTENSION_SUFFIXES[0]}"], "is not on PYTHONPATH: source .*/setup.sh"),
    ],
)
def test_a_binding_that_cannot_be_imported_is_one_line(installation, monkeypatch, tmp_path, files, cause):
    def missing(name: str):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(xrt_installation, "import_module", missing)
    monkeypatch.setattr(xrt_installation, "pynq_version", lambda: "4.0.0")
    monkeypatch.setenv("XILINX_XRT", str(tmp_path))
    (tmp_path / "python").mkdir()
    for name in files:
        (tmp_path / "python" / name).touch()
    assert PyxrtCard._probe_() == []
    assert re.search(rf"pyxrt cannot be imported: .*{cause}", PyxrtCard.why_none) and "\n" not in PyxrtCard.why_none
    (check,) = doctor._examine([doctor._card_class])
    assert check.status == "problem" and PyxrtCard.why_none in check.detail
    function = tmp_path / "devices" / "0000:3b:00.1"
    function.mkdir(parents=True)
    (function / "vendor").write_text("0x10ee\n")
    monkeypatch.setattr(shells, "PCI_DEVICES", tmp_path / "devices")
    monkeypatch.setattr(shells, "pynq_version", lambda: "4.0.0")
    assert PyxrtCard.why_none in shells.why_unlisted() and "pip install 'pynq==3.0.1'" in shells.why_unlisted()


def test_a_host_whose_xrt_has_no_card(xrt, pyxrt_card, monkeypatch):
    monkeypatch.setenv("FAKE_XRT_CARDS", "0")
    assert PyxrtCard._probe_() == [] and PyxrtCard.why_none == "Could not open device with index '0'"
    monkeypatch.setenv("FAKE_XRT_CARDS", "2")
    assert [card.tag for card in PyxrtCard._probe_()] == ["pyxrt0", "pyxrt1"] and PyxrtCard.why_none is None


def test_the_doctor_says_which_class_drives_the_card_and_why(pyxrt_card, monkeypatch):
    (check,) = doctor._examine([doctor._card_class])
    assert check.status == "note" and check.detail.startswith("PyxrtCard, on XRT's Python binding, because ")
    assert "no real card has been tried with it" in check.detail
    monkeypatch.setattr(xrt_installation, "pynq_version", lambda: "3.0.1")
    (check,) = doctor._examine([doctor._card_class])
    assert "because BTTLAB_PYXRT is 1, beside PYNQ's XrtDevice; " in check.detail
    monkeypatch.delenv("BTTLAB_PYXRT")
    (check,) = doctor._examine([doctor._card_class])
    assert (check.status, check.detail) == ("ok", "PYNQ's XrtDevice (PYNQ 3.0.1, XRT 2.13.466)")
    monkeypatch.delenv("XILINX_XRT")
    assert not list(doctor._card_class())


def table_of_hosts() -> list[list[str]]:
    """Return the rows of docs/hosts.md's table: Python, PYNQ, NumPy, XRT and what is used."""
    lines = (ROOT / "docs" / "hosts.md").read_text().splitlines()
    start = lines.index("| Python | PYNQ | NumPy | XRT | what is used |") + 2
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[start:])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


@pytest.mark.parametrize("row", table_of_hosts(), ids=" ".join)
def test_the_table_of_hosts_is_what_is_used(row, installation, monkeypatch):
    pythons, pynq_cell, numpy_cell, xrt_cell, used = row
    lock = "requirements.lock" if pynq_cell.startswith("3") else "requirements-pynq4.lock"
    pins = [
        Requirement(line.rstrip(" \\"))
        for line in (ROOT / lock).read_text().splitlines()
        if re.match(r"(pynq|numpy)==", line)
    ]
    for python in re.findall(r"3\.\d+", pythons):
        of_python = {"python_version": python, "python_full_version": f"{python}.0"}
        pinned = {pin.name: str(pin.specifier)[2:] for pin in pins if not pin.marker or pin.marker.evaluate(of_python)}
        assert pinned["pynq"] == pynq_cell.split(",")[0] and pinned["numpy"].startswith(f"{numpy_cell}.")
    monkeypatch.setattr(xrt_installation, "pynq_version", lambda: pinned["pynq"])
    if xrt_cell == "none":
        monkeypatch.delenv("XILINX_XRT")
    elif not xrt_cell[0].isdigit():
        monkeypatch.setattr(xrt_installation, "CALLS", ("xclOfAnotherRelease",))
    else:
        oldest, newest = xrt_cell.split(" to ")
        for version in (oldest, newest):
            monkeypatch.setattr(xrt_installation, "xrt_version", lambda version=version: f"{version}.0")
            assert xrt_installation.xrt_warning() is None
        for beyond in ("2.13.0", f"2.{int(newest.split('.')[1]) + 1}.0"):
            monkeypatch.setattr(xrt_installation, "xrt_version", lambda beyond=beyond: beyond)
            assert f"version {beyond}: " in xrt_installation.xrt_warning()
    drives = (
        "PyxrtCard" if xrt_installation.pyxrt_reason() else "XrtDevice" if "XILINX_XRT" in os.environ else "emulated"
    )
    assert drives in used


# --- arguments and buffers


@pytest.mark.every_python
def test_a_wrong_bank_is_refused_where_xrt_would_use_a_copy(pyxrt_card, trainer):
    buffer = trainer._banks["memory"].allocate(trainer._results.shape, "i4")
    trainer._results = buffer
    with pytest.raises(OverlayError, match=r"argument results is in HBM\[\d\], but its port is connected to HBM\[1\]"):
        trainer._check_machine()


def test_arguments_that_are_no_buffers_of_the_card(pyxrt_card, trainer):
    results = trainer._results
    for stray in (np.zeros(16, "i4"), results + 1, EmulatedU50()):
        trainer._results = stray
        with pytest.raises(BttlabError, match=r"argument results is in no buffer of a card|not in device memory"):
            trainer._run(0)
    elsewhere = HbmBank(EmulatedU50(), {"idx": 1, "size": 1 << 28, "base_address": 1 << 28})
    trainer._results = elsewhere.allocate(16, "i4")
    with pytest.raises(OverlayError, match=f"argument results is in no buffer of {SHELL}; allocate one on this card"):
        trainer._run(0)


@pytest.mark.every_python
def test_a_float_arrives_with_its_bits(pyxrt_card, trainer):
    """pyxrt's own call of a kernel leaves a float out without a word."""
    numbers = {}
    pyxrt = pyxrt_card._pyxrt
    unit = pyxrt._cards[0].units["trainer"]
    offsets = dict(zip((a.name for a in unit.kernel.arguments), unit.kernel.offsets, strict=True))
    trainer.train(SAMPLES, Optimizer("adamw"), 1e-3)
    trainer._run(1, 0, Optimizer("adamw", beta1=0.875))
    for name in ("beta1", "beta2", "epsilon"):
        numbers[name] = np.frombuffer(unit.read(offsets[name], 4), "<f4")[0]
    assert numbers["beta1"] == np.float32(0.875) and numbers["epsilon"] == np.float32(Optimizer("adamw").epsilon)


def test_a_view_is_passed_as_a_part_of_its_buffer(pyxrt_card, trainer):
    whole = trainer._banks["results"].allocate(4096, "i4")
    part = whole[1024:]
    assert pyxrt_card.memory.argument("results", "HBM[1]", part).address() == whole.device_address + 4096
    whole[:], size = 7, whole.nbytes
    part.sync_to_device()
    whole[:] = 0
    whole.sync_from_device()
    assert (whole[1024:] == 7).all() and not whole[:1024].any()
    assert pyxrt_card.memory.usage(1)[0] >= size
    whole.freebuffer()
    with pytest.raises(BttlabError, match="the buffer was freed"):
        part.sync_to_device()
    with pytest.raises(BttlabError, match="at least one"):
        trainer._banks["results"].allocate(0)


def test_registers_cannot_be_reached(pyxrt_card, trainer):
    for action in (lambda: trainer.read(0), lambda: trainer.write(0, 1)):
        with pytest.raises(OverlayError, match="pyxrt has no call for it; use start_kernel"):
            action()


def test_buffers_of_an_overlay_go_with_the_driver(pyxrt_card):
    trainer = opened()
    assert pyxrt_card.memory.usage(1)[1] == 1
    del trainer
    opened()
    assert pyxrt_card.memory.usage(1)[1] <= 2


# --- faults, as in test_fake_xrt.py


def test_other_threads_go_on_while_it_waits(trainer, monkeypatch):
    monkeypatch.setenv("FAKE_XRT_FAULT", "slow")
    turns, ended = [], threading.Event()

    def count() -> None:
        while not ended.wait(0.01):
            turns.append(1)

    beside = threading.Thread(target=count)
    beside.start()
    train(trainer)
    ended.set()
    beside.join()
    assert len(turns) > 10


@pytest.mark.every_python
def test_a_card_with_another_shell_is_not_used(xrt, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("FAKE_XRT_SHELL", "xilinx_u50_gen3x4_xdma_base_2")
    monkeypatch.setattr(PyxrtCard, "interfaces", frozenset(["f465b0a3ae8c64f619bc150384ace69b"]))
    xrt.pyxrt_card(monkeypatch, tmp_path)
    assert isinstance(load_overlay("trainer").device, EmulatedU50)
    assert "WARNING: xilinx_u50_gen3x4_xdma_base_2 is NOT used: the hw overlay is for the U50, shell" in caplog.text
    with pytest.raises(OverlayError, match="leave out --require-card"):
        load_overlay("trainer", require_card=True)


# --- two users


@pytest.mark.every_python
def test_the_card_belongs_to_one_process(xrt, pyxrt_card, trainer, tmp_path):
    code = (
        "import pynq, sys; from pathlib import Path; import bttlab.card as card\n"
        f"card.card_lock.DEVICES = card.shells.PCI_DEVICES = Path({str(tmp_path)!r})\n"
        "real = next(each for each in pynq.Device.devices if type(each).__name__ == 'PyxrtCard')\n"
        "try: card.load_overlay('trainer', real)\n"
        "except card.CardBusyError as error: print(error)\n"
        "else: print('loaded')"
    )
    environment = os.environ | xrt.pyxrt_environment
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert f"{SHELL} is in use by" in done.stdout or "0000:3b:00.1 is in use by" in done.stdout, done.stderr
    assert str(os.getpid()) in done.stdout


def test_two_models_share_the_card_in_time_slices(pyxrt_card, monkeypatch, tmp_path):
    monkeypatch.setattr(sharing, "FOLDER", tmp_path)
    with keeping(tmp_path / "bttlab-0000:3b:00.1.shared"):
        trainers = [opened(pyxrt_card) for _ in range(2)]
        for first in range(len(SAMPLES)):
            for trainer in trainers:
                trainer.train(SAMPLES[first : first + 1], Optimizer("adamw"), 1e-3)
        alone = opened(EmulatedU50())
        for first in range(len(SAMPLES)):
            alone.train(SAMPLES[first : first + 1], Optimizer("adamw"), 1e-3)
        assert {state_digest(trainer) for trainer in trainers} == {state_digest(alone)}


# --- the lab on such a card


@pytest.mark.every_python
@pytest.mark.long
def test_a_command_finds_the_card_by_its_environment(xrt, tiny_airline, tmp_path):
    environment = os.environ | xrt.pyxrt_environment | {"BTTLAB_DATA": str(tiny_airline.parent), "BTTLAB_QUICK": "1"}
    command = [sys.executable, "-m", "bttlab", "train", "--require-card", "--samples", "8", "--out"]
    index = "0" if xrt_installation.pynq_version() != "3.0.1" else "1"  # there PYNQ's own device comes first
    done = subprocess.run(
        [*command, str(tmp_path / "run"), "--device", index], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0 and f"training on {SHELL} (card {index})" in done.stderr, done.stderr


# --- the fake and the real binding


def _real_pyxrt():
    """The binding of an XRT on this host; None if there is none for this Python."""
    folders = [folder for folder in sys.path if Path(folder or ".").resolve() != PYTHON_FOLDER.resolve()]
    spec = importlib.machinery.PathFinder.find_spec("pyxrt", folders)
    if spec is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _arities(function) -> set[int]:
    """Numbers of arguments that a method of pybind11 takes, from its docstring."""
    found = set()
    for arguments in re.findall(r"^(?:\d+\. )?\w+\((self: .*)\) -> ", function.__doc__, re.MULTILINE):
        found.add(len(re.findall(r"(?:^|, )\w+: ", arguments)))
    return found


def test_the_arities_of_a_docstring():
    def wait():
        """wait(*args, **kwargs)
        Overloaded function."""

    wait.__doc__ = (
        "wait(*args, **kwargs)\nOverloaded function.\n\n1. wait(self: pyxrt.run) -> pyxrt.ert_cmd_state\n\n"
        "Wait\n\n2. wait(self: pyxrt.run, arg0: typing.SupportsInt | typing.SupportsIndex) -> pyxrt.ert_cmd_state\n"
    )
    assert _arities(wait) == {1, 2}


def names_and_arities(module) -> dict[str, list]:
    """Return each class of a binding with its constants, or its methods and how many arguments these take."""
    found: dict[str, list] = {}
    classes = [(name, cls) for name, cls in vars(module).items() if inspect.isclass(cls)]
    for name, cls in classes:
        if not hasattr(cls, "__members__"):
            classes += [(f"{name}.{each}", inner) for each, inner in vars(cls).items() if inspect.isclass(inner)]
        members = getattr(cls, "__members__", None)
        methods = {
            each: sorted(_arities(value))
            for each, value in vars(cls).items()
            if callable(value) and not inspect.isclass(value) and (each == "__init__" or not each.startswith("_"))
        }
        found[name] = sorted(members) if members is not None else methods
    return found


def test_the_fake_has_names_and_arguments_of_the_real_binding(monkeypatch):
    """Those of XRT 2.13.466 are kept, of its source compiled with Debian's libxrt-dev; and of one that is here."""
    bindings = [json.loads((ROOT / "tests" / "data" / "pyxrt_2_13.json").read_text())]
    if (real := _real_pyxrt()) is not None:
        assert not hasattr(real, "_cards")  # it is another module than the fake
        bindings.append(names_and_arities(real))
    monkeypatch.setattr(sys, "path", [str(PYTHON_FOLDER), *sys.path])
    spec = importlib.util.spec_from_file_location("fake_pyxrt", PYTHON_FOLDER / "pyxrt.py")
    fake = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fake)
    classes = {name: cls for name, cls in vars(fake).items() if getattr(cls, "__module__", "") == "fake_pyxrt"}
    classes = {name: cls for name, cls in classes.items() if inspect.isclass(cls) and not name.startswith("_")}
    for name, cls in tuple(classes.items()):
        inner = {each: value for each, value in vars(cls).items() if getattr(value, "__module__", "") == "fake_pyxrt"}
        classes |= {f"{name}.{each}": value for each, value in inner.items() if inspect.isclass(value)}
    compared = 0
    for name, cls in classes.items():
        for binding in bindings:
            if hasattr(cls, "__members__"):
                assert set(cls.__members__) <= set(binding[name]), name
                continue
            for method, function in inspect.getmembers(cls, inspect.isfunction):
                if method.startswith("_") and method != "__init__":
                    continue
                parameters = list(inspect.signature(function).parameters.values())
                least = sum(each.default is each.empty for each in parameters)
                is_variable = any(each.kind is each.VAR_POSITIONAL for each in parameters)
                taken = {4, 5} if is_variable else set(range(least, len(parameters) + 1))
                assert taken <= set(binding[name][method]), f"{name}.{method}"
                compared += 1
    assert compared > 15

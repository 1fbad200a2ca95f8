"""Check a host before a class starts on it: each missing thing is one line with the way out."""

import grp
import os
import pwd
import shutil
import socket
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bttlab.files import writable_by_others
from bttlab.teaching.course import COURSE
from class_settings import ClassError, ClassSettings, last_line
from class_spawner import SERVER

PROXY = "configurable-http-proxy"
XILINX = "0x10ee"
DRM = Path("/sys/class/drm")
DEVICES = Path("/dev/dri")
SYSTEM_UIDS = 1000  # below it, and nobody's, are accounts of no person
NOBODY = 65534


def check_host(settings: ClassSettings) -> None:
    """Check all that the hub needs.

    Raises
    ------
    ClassError
        What is missing first.
    """
    if os.geteuid() != 0:
        raise ClassError("the hub starts each student's server as that student, which takes root: sudo make class …")
    if shutil.which(PROXY) is None:
        raise ClassError(f"there is no {PROXY}: apt-get install npm && npm install --global {PROXY}@5.3.0")
    names = [*settings.names(), *settings.lecturers]
    if settings.group:
        try:
            names += grp.getgrnam(settings.group).gr_mem
        except KeyError:
            raise ClassError(f"there is no group {settings.group}: groupadd {settings.group}") from None
    check_accounts(names)
    for name, port in (("port", settings.port), ("the hub's port", settings.port + 1), ("proxy's", settings.port + 2)):
        check_port(settings.address if name == "port" else "127.0.0.1", port)
    for file in filter(None, (settings.certificate, settings.key)):
        if not file.is_file():
            raise ClassError(f"{file} is not there: settings certificate and key name files in PEM")
    if settings.key and stat.S_IMODE(settings.key.stat().st_mode) & 0o077:
        raise ClassError(f"{settings.key}, the key, is open to others: chmod 600 {settings.key}")
    for folder in filter(None, (settings.data, settings.overlays)):
        if not folder.is_dir():
            raise ClassError(f"the shared folder {folder} is not there")
        if (open_place := writable_by_others(folder)) is not None:
            raise ClassError(f"every user can write to {open_place}, which students share: chmod o-w {open_place}")
    if settings.exchange:
        check_exchange(settings.exchange, settings.lecturers)
    check_python(settings.python)
    check_cards(names)


def check_accounts(names: list[str]) -> None:
    """Check that every name is a person's account.

    Raises
    ------
    ClassError
        For the first that is not.
    """
    for name in names:
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            raise ClassError(f"{name} has no account here: classroom/accounts.py makes those of a class list") from None
        if not SYSTEM_UIDS <= user.pw_uid < NOBODY:
            raise ClassError(f"{name} is an account of the system's (uid {user.pw_uid}), no student's: take it out")


def check_port(address: str, port: int) -> None:
    """Check that nothing listens at a port.

    Raises
    ------
    ClassError
        If something does, or the address is not this machine's.
    """
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            way = f"ss -ltnp 'sport = {port}' says what has it; or set another port"
            raise ClassError(f"port {port} at {address} cannot be had ({error.strerror}): {way}") from None


def check_exchange(exchange: Path, lecturers: Sequence[str]) -> None:
    """Check that every student can hand in, and that the course's folder in the exchange is a lecturer's.

    Raises
    ------
    ClassError
        If not.
    """
    if not exchange.is_dir() or exchange.stat().st_mode & 0o1777 != 0o1777:
        raise ClassError(
            f"students cannot hand in at the exchange {exchange}: mkdir -p {exchange}; chmod 1777 {exchange}"
        )
    course = exchange / COURSE
    if not course.is_dir():
        way = "release an assignment first (docs/teaching.md), lest a student makes it"
        raise ClassError(f"the exchange {exchange} has no folder of the course, {COURSE}: {way}")
    if course.stat().st_uid not in {0, *(pwd.getpwnam(name).pw_uid for name in lecturers)}:
        raise ClassError(
            f"{course} is {_owner(course)}'s, who is no lecturer: remove it, and release an assignment again"
        )


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except KeyError:
        return f"uid {path.stat().st_uid}"


def check_python(python: Path) -> None:
    """Check that students can run the Python of their servers, and that it has what they need.

    Raises
    ------
    ClassError
        If a user who owns nothing cannot.
    """
    for file in (python, SERVER):
        for place in dict.fromkeys((*file.parents, *Path(os.path.realpath(file)).parents)):
            if place.exists() and not place.stat().st_mode & stat.S_IXOTH:
                raise ClassError(
                    f"students cannot run {file}: {place} is closed to them. Put the checkout where all can read it, "
                    "and make its environment with the system's Python: make environment PYTHON=/usr/bin/python3"
                )
    done = subprocess.run(
        [python, "-c", "import bttlab, jupyterlab, jupyterhub.singleuser"],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        env={name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        | {"HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        why = last_line(done.stderr)
        raise ClassError(f"students' servers cannot run on {python} ({why}): make environment, and chmod -R o+rX it")


def card_nodes(devices: Path = DEVICES, system: Path = DRM) -> dict[str, Path]:
    """Return the device node of each card that the host has, by the card's PCIe address."""
    found = {}
    for vendor in sorted(system.glob("renderD*/device/vendor")):
        node = devices / vendor.parents[1].name
        if vendor.read_text().strip() == XILINX and node.exists():
            found[vendor.parent.resolve().name] = node
    return found


def check_cards(names: list[str], devices: Path = DEVICES, system: Path = DRM) -> None:
    """Check that every student may open every card that the host has.

    Raises
    ------
    ClassError
        For the first who may not.
    """
    for node in card_nodes(devices, system).values():
        found = node.stat()
        if found.st_mode & 0o006 == 0o006:
            continue
        group = grp.getgrgid(found.st_gid)
        if found.st_mode & 0o060 != 0o060:
            raise ClassError(f"the card {node} can be opened by nobody but its owner: chmod 660 {node}")
        for name in names:
            if group.gr_gid not in os.getgrouplist(name, pwd.getpwnam(name).pw_gid):
                raise ClassError(
                    f"{name} cannot open the card {node}, which is group {group.gr_name}'s: "
                    f"usermod -aG {group.gr_name} {name}"
                )

"""Settings of a class: a TOML file, and a class list, which is a text file of names."""

import os
import re
import sys
from dataclasses import dataclass, fields
from ipaddress import ip_address
from pathlib import Path

from bttlab.util.errors import BttlabError
from bttlab.util.files import read_regular

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

MOST_BYTES = 1 << 20
PAM_SERVICE = "bttlab-class"  # locks an account after wrong passwords, if classroom/pam.d is copied to /etc
NAME = re.compile(r"[a-z][a-z0-9_-]{0,30}")  # every useradd allows it, and it needs no quoting in shells or paths
DOMAIN = re.compile(r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}")
MEMORY = re.compile(r"[1-9]\d*[MG]")


class ClassError(BttlabError):
    """A lecturer must correct something; the message is one line."""


def last_line(errors: str) -> str:
    """Return the last line of a program's stderr, which gives the reason of its failure."""
    return (errors.strip().splitlines() or ["without a message"])[-1]


@dataclass(frozen=True)
class ClassSettings:
    """The settings of a class; paths are relative to the file with the settings.

    Parameters
    ----------
    students : path, optional
        The class list. Without one, all members of `group` may log in.
    group : str, optional
        A group of system users.
    lecturers : list of str
        They may start and stop every student's server; with `domain` they may also open it.
    address, port : str, int
        Where the hub listens; an address other than loopback needs a certificate. The hub itself uses the two ports
        after `port`, on loopback.
    certificate, key : path, optional
        For TLS, in PEM.
    domain : str
        The hub's DNS name, if its subdomains (`*.DOMAIN`) resolve to this host and the certificate covers them. Each
        student's server then has its own name, and lecturers may open it.
    memory : str
        Memory limit of each server, in MiB or GiB: "4G".
    cores : int
        Number of processor cores of each server.
    processes : int
        Maximum number of a student's processes and threads.
    idle_minutes : int
        Time after which a server without activity is stopped.
    data, overlays : path, optional
        Shared corpora and overlays, which students can only read.
    exchange : path, optional
        nbgrader's exchange, where assignments are released and submitted. With it students' JupyterLab lists them.
    emulated_cards : int
        Number of emulated cards of each student's processes.
    state : path
        A folder for the hub's database and secrets, for root only.
    runtime : path
        A folder for sockets, on a file system that is empty after a restart of the host.
    python : path
        The Python that runs students' servers.
    """

    students: Path | None = None
    group: str | None = None
    lecturers: tuple[str, ...] = ()
    address: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    key: Path | None = None
    domain: str = ""
    memory: str = "4G"
    cores: int = 2
    processes: int = 512
    idle_minutes: int = 60
    data: Path | None = None
    overlays: Path | None = None
    exchange: Path | None = None
    emulated_cards: int = 1
    state: Path = Path("/var/lib/bttlab-class")
    runtime: Path = Path("/run/bttlab-class")
    python: Path = Path(sys.executable)

    @property
    def is_local(self) -> bool:
        """True if the hub listens only on loopback."""
        return ip_address(self.address).is_loopback

    def names(self) -> list[str]:
        """Return the names of the class list, in order."""
        return read_class_list(self.students) if self.students else []


PATHS = {"students", "certificate", "key", "data", "overlays", "exchange", "state", "runtime", "python"}
LEAST = {"port": 1024, "cores": 1, "processes": 64, "idle_minutes": 5, "emulated_cards": 0}


def read_settings(path: Path) -> ClassSettings:
    """Return the settings in a TOML file.

    Raises
    ------
    ClassError
        If a setting is unknown, has the wrong type, is out of range, or needs another setting that is missing.
    """
    try:
        found = tomllib.loads(read_regular(path, MOST_BYTES).decode())
    except (OSError, ValueError) as error:
        raise ClassError(f"cannot read settings from {path}: {error}; start from classroom/class.toml") from None
    known = {field.name: field.default for field in fields(ClassSettings)}
    for name, value in found.items():
        if name not in known:
            raise ClassError(f"{path}: {name} is not a setting; there are {', '.join(known)}")
        required = int if name in LEAST else list if name == "lecturers" else str
        if type(value) is not required or (required is list and not all(isinstance(one, str) for one in value)):
            kinds = {int: "a whole number", list: "a list of names", str: "text in quotes"}
            raise ClassError(f"{path}: {name} = {value!r} is not {kinds[required]}")
        if name in LEAST and not LEAST[name] <= value <= (65533 if name == "port" else 10**6):
            raise ClassError(f"{path}: {name} = {value} is out of range: at least {LEAST[name]}")
        if name in PATHS:
            # Keeps symbolic links: the Python of an environment is one.
            found[name] = Path(os.path.abspath(path.parent / value))
    settings = ClassSettings(**found | {"lecturers": tuple(found.get("lecturers", ()))})
    _check(path, settings)
    return settings


def _check(path: Path, settings: ClassSettings) -> None:
    if bool(settings.students) == bool(settings.group):
        raise ClassError(f"{path}: who may log in? Give students, a class list, or group, one of the system's groups")
    if not MEMORY.fullmatch(settings.memory):
        raise ClassError(f'{path}: memory = "{settings.memory}" is not a size: give a number with M or G, as "4G"')
    if settings.cores > (os.cpu_count() or 1):
        raise ClassError(f"{path}: cores = {settings.cores}, but this machine has {os.cpu_count()}")
    for name in settings.lecturers:
        if not NAME.fullmatch(name):
            raise ClassError(f"{path}: lecturer {name!r} is not a name of a system user")
    if bool(settings.certificate) != bool(settings.key):
        raise ClassError(f"{path}: give both certificate and key: one of them is missing")
    if settings.domain and not (DOMAIN.fullmatch(settings.domain) and settings.certificate):
        raise ClassError(
            f'{path}: domain = "{settings.domain}" must be a DNS name, with a certificate for it and *.NAME'
        )
    try:
        local = settings.is_local
    except ValueError:
        raise ClassError(f'{path}: address = "{settings.address}" is not an IP address') from None
    if not local and not settings.certificate:
        raise ClassError(
            f"{path}: at {settings.address} passwords would cross the network in the clear: give certificate and "
            'key, or keep address = "127.0.0.1" and let students connect through ssh -L'
        )


def read_class_list(path: Path) -> list[str]:
    """Return the names in a class list, one in each line; empty lines and comments after # are ignored.

    Raises
    ------
    ClassError
        If it cannot be read, is empty, or has a name that is invalid or occurs twice.
    """
    try:
        text = read_regular(path, MOST_BYTES).decode()
    except (OSError, ValueError) as error:
        raise ClassError(f"the class list {path} cannot be read: {error}") from None
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name = line.partition("#")[0].strip()
        if not name:
            continue
        if not NAME.fullmatch(name):
            rule = "a lower-case letter, then lower-case letters, digits, - and _, at most 31 characters"
            raise ClassError(f"{path}, line {number}: {name!r} is not a name of a system user: {rule}")
        if name in lines:
            raise ClassError(f"{path}, line {number}: {name} is also in line {lines[name]}: list each name once")
        lines[name] = number
    if not lines:
        raise ClassError(f"the class list {path} has no names: write one in each line")
    return list(lines)

"""Settings of a class: a TOML file, and a class list, a text file of names."""

import os
import re
import sys
from dataclasses import dataclass, fields
from ipaddress import ip_address
from pathlib import Path

from bttlab.errors import BttlabError
from bttlab.files import read_regular

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

MOST_BYTES = 1 << 20
PAM_SERVICE = "bttlab-class"  # locks an account after wrong passwords, where classroom/pam.d has been copied to /etc
NAME = re.compile(r"[a-z][a-z0-9_-]{0,30}")  # useradd takes it everywhere, and no shell or path changes it
DOMAIN = re.compile(r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}")
MEMORY = re.compile(r"[1-9]\d*[MG]")


class ClassError(BttlabError):
    """Raised if a lecturer must correct something; the message is one line."""


def last_line(errors: str) -> str:
    """Return the last line of what a program wrote to stderr, where the reason stands."""
    return (errors.strip().splitlines() or ["it says nothing"])[-1]


@dataclass(frozen=True)
class ClassSettings:
    """The settings of a class; paths are relative to the file that they stand in.

    Parameters
    ----------
    students : path, optional
        The class list. Without one, all members of `group` may log in.
    group : str, optional
        A group of system users.
    lecturers : list of str
        They may start and stop every student's server; with `domain` also open it.
    address, port : str, int
        Where the hub listens; other addresses than loopback take a certificate. The two ports after `port` are for the
        hub itself, on loopback.
    certificate, key : path, optional
        For TLS, in PEM.
    domain : str
        The hub's name, if names below it (`*.DOMAIN`) lead to this host and the certificate is for them too: then each
        student's server has a name of its own, and lecturers may open it.
    memory : str
        Of each server, in MiB or GiB: "4G".
    cores : int
        Of each server.
    processes : int
        That a student may have at once, threads counted.
    idle_minutes : int
        After which a server without activity is stopped.
    data, overlays : path, optional
        Shared corpora and overlays, which students only read.
    exchange : path, optional
        nbgrader's, where assignments are handed out and in. With it students' JupyterLab lists them.
    emulated_cards : int
        That each student's processes have; the first one of all is the same for the whole class, in turns.
    state : path
        A folder for the hub's database and secrets, root's alone.
    runtime : path
        A folder for sockets, on a file system that is empty after a start of the host.
    python : path
        What students' servers run on.
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
    def shared_cards(self) -> Path:
        """The folder in which emulated cards are declared shared; no student has its name."""
        return self.runtime / ".cards"

    @property
    def is_local(self) -> bool:
        """True if the hub listens on loopback alone."""
        return ip_address(self.address).is_loopback

    def names(self) -> list[str]:
        """Return the names of the class list, in its order."""
        return read_class_list(self.students) if self.students else []


PATHS = {"students", "certificate", "key", "data", "overlays", "exchange", "state", "runtime", "python"}
LEAST = {"port": 1024, "cores": 1, "processes": 64, "idle_minutes": 5, "emulated_cards": 0}


def read_settings(path: Path) -> ClassSettings:
    """Return the settings in a TOML file.

    Raises
    ------
    ClassError
        If a setting is unknown, of another type, out of its range, or goes with another that is missing.
    """
    try:
        found = tomllib.loads(read_regular(path, MOST_BYTES).decode())
    except (OSError, ValueError) as error:
        raise ClassError(f"{path} gives no settings: {error}; start from classroom/class.toml") from None
    known = {field.name: field.default for field in fields(ClassSettings)}
    for name, value in found.items():
        if name not in known:
            raise ClassError(f"{path}: {name} is no setting; there are {', '.join(known)}")
        wanted = int if name in LEAST else list if name == "lecturers" else str
        if type(value) is not wanted or (wanted is list and not all(isinstance(one, str) for one in value)):
            kinds = {int: "a whole number", list: "a list of names", str: "text in quotes"}
            raise ClassError(f"{path}: {name} = {value!r} is not {kinds[wanted]}")
        if name in LEAST and not LEAST[name] <= value <= (65533 if name == "port" else 10**6):
            raise ClassError(f"{path}: {name} = {value} is out of range: at least {LEAST[name]}")
        if name in PATHS:
            found[name] = Path(os.path.abspath(path.parent / value))  # links stay: an environment's Python is one
    settings = ClassSettings(**found | {"lecturers": tuple(found.get("lecturers", ()))})
    _check(path, settings)
    return settings


def _check(path: Path, settings: ClassSettings) -> None:
    if bool(settings.students) == bool(settings.group):
        raise ClassError(f"{path}: who may log in? Give students, a class list, or group, one of the system's groups")
    if not MEMORY.fullmatch(settings.memory):
        raise ClassError(f'{path}: memory = "{settings.memory}" is no size: a number with M or G, as "4G"')
    if settings.cores > (os.cpu_count() or 1):
        raise ClassError(f"{path}: cores = {settings.cores}, but this machine has {os.cpu_count()}")
    for name in settings.lecturers:
        if not NAME.fullmatch(name):
            raise ClassError(f"{path}: lecturer {name!r} is no name of a system user")
    if bool(settings.certificate) != bool(settings.key):
        raise ClassError(f"{path}: certificate and key go together: one of them is missing")
    if settings.domain and not (DOMAIN.fullmatch(settings.domain) and settings.certificate):
        raise ClassError(f'{path}: domain = "{settings.domain}" takes a DNS name, and a certificate for it and *.NAME')
    try:
        local = settings.is_local
    except ValueError:
        raise ClassError(f'{path}: address = "{settings.address}" is no IP address') from None
    if not local and not settings.certificate:
        raise ClassError(
            f"{path}: at {settings.address} passwords would cross the network in the clear: give certificate and "
            'key, or keep address = "127.0.0.1" and let students come through ssh -L'
        )


def read_class_list(path: Path) -> list[str]:
    """Return the names in a class list: one a line; empty lines and what follows a # do not count.

    Raises
    ------
    ClassError
        If it cannot be read, has nobody, or a name that is bad or there twice.
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
            rule = "small letters, digits, - and _, a letter first, 31 at most"
            raise ClassError(f"{path}, line {number}: {name!r} is no name of a system user: {rule}")
        if name in lines:
            raise ClassError(f"{path}, line {number}: {name} is there already, in line {lines[name]}: each name once")
        lines[name] = number
    if not lines:
        raise ClassError(f"the class list {path} has no names: one a line")
    return list(lines)

"""Settings of a class: a TOML file, and a class list, which is a text file of names."""

import os
import re
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from pydantic import Field

from bttlab.util.errors import BttlabError
from bttlab.util.reading import MOST_OF_SETTINGS, read_text, read_toml
from bttlab.util.settings import settings

PAM_SERVICE = "bttlab-class"  # locks an account after wrong passwords, if classroom/pam.d is copied to /etc
NAME = re.compile(r"[a-z][a-z0-9_-]{0,30}")  # every useradd allows it, and it needs no quoting in shells or paths
DOMAIN = re.compile(r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}")
MEMORY = re.compile(r"[1-9]\d*[MG]")


class ClassError(BttlabError):
    """A lecturer must correct something; the message is one line."""


def last_line(errors: str) -> str:
    """Return the last line of a program's stderr, which gives the reason of its failure."""
    return (errors.strip().splitlines() or ["without a message"])[-1]


@settings(ClassError)
class ClassSettings:
    """The settings of a class; paths are relative to the file with the settings.

    Parameters
    ----------
    students : path, optional
        The class list. Without one, all members of `group` may log in.
    group : str, optional
        A group of system users.
    lecturers : tuple of str
        They may start and stop every student's server; with `domain` they may also open it.
    address, port : str, int
        Where the hub listens; an address other than loopback needs a certificate. The hub itself uses the two ports
        after `port`, on loopback.
    certificate, key : path, optional
        For TLS, in PEM.
    domain : str
        The hub's DNS name, if its subdomains (`*.DOMAIN`) resolve to this host and the certificate covers them; on
        loopback a name that ends in .localhost, which browsers resolve. Each student's server then has its own name.
    open : bool
        All servers have one host name: a page of one student can act as the student who reads it.
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
        Number of emulated cards of each of a student's processes.
    state : path
        A folder for the hub's database and secrets, for root only.
    runtime : path
        A folder for sockets, on a file system that is empty after a restart of the host.
    python : path
        The Python that runs students' servers.
    """

    students: Path | None = None
    group: str | None = None
    lecturers: tuple[Annotated[str, Field(pattern=f"^{NAME.pattern}$")], ...] = ()
    address: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1024, le=65533)] = 8000
    certificate: Path | None = None
    key: Path | None = None
    domain: Annotated[
        str, Field(pattern=f"^({DOMAIN.pattern})?$", title="domain, as class.localhost, in lower case,")
    ] = ""
    open: bool = False
    memory: Annotated[str, Field(pattern=f"^{MEMORY.pattern}$", title="memory, as 512M or 4G,")] = "4G"
    cores: Annotated[int, Field(ge=1)] = 2
    processes: Annotated[int, Field(ge=64)] = 512
    idle_minutes: Annotated[int, Field(ge=5)] = 60
    data: Path | None = None
    overlays: Path | None = None
    exchange: Path | None = None
    emulated_cards: Annotated[int, Field(ge=0, le=16)] = 1
    state: Path = Path("/var/lib/bttlab-class")
    runtime: Path = Path("/run/bttlab-class")
    python: Path = Path(sys.executable)

    def __post_init__(self) -> None:
        if bool(self.students) == bool(self.group):
            raise ClassError("give students, a class list, or group, a group of system users: one of the two")
        if self.cores > (os.cpu_count() or 1):
            raise ClassError(f"cores = {self.cores} is more than this machine has: {os.cpu_count()}")
        if bool(self.certificate) != bool(self.key):
            raise ClassError("give both certificate and key: one of them is missing")
        try:
            local = self.is_local
        except ValueError:
            raise ClassError(f'address = "{self.address}" is not an IP address') from None
        if not local and not self.certificate:
            raise ClassError(
                f"at {self.address} passwords would cross the network in the clear: give certificate and key, or keep "
                'address = "127.0.0.1" and let students connect through ssh -L'
            )
        if self.domain and not self.certificate and not (local and self.domain.endswith(".localhost")):
            raise ClassError(
                f'domain = "{self.domain}" needs a certificate for it and *.{self.domain}; on loopback a name that '
                "ends in .localhost needs none"
            )

    @property
    def is_local(self) -> bool:
        """True if the hub listens only on loopback."""
        return ip_address(self.address).is_loopback

    def names(self) -> list[str]:
        """Return the names of the class list, in order."""
        return read_class_list(self.students) if self.students else []


PATHS = {"students", "certificate", "key", "data", "overlays", "exchange", "state", "runtime", "python"}


def read_settings(path: Path) -> ClassSettings:
    """Return the settings in a TOML file.

    Raises
    ------
    ClassError
        If a setting is unknown, has the wrong type, is out of range, or needs another setting that is missing; if the
        class has more than one user, but neither `domain` nor `open`; or as `read_class_list`.
    """
    try:
        found = read_toml(path)
    except BttlabError as error:
        raise ClassError(f"cannot read settings from {path}: {error}; start from classroom/class.toml") from None
    for name in PATHS & found.keys():
        if not isinstance(found[name], str) or not found[name]:
            raise ClassError(f"{path}: {name} is {found[name]!r}: give a path, or leave it out")
        found[name] = Path(os.path.abspath(path.parent / found[name]))  # keeps links: an environment's Python is one
    if "lecturers" in found:
        if not isinstance(found["lecturers"], list):
            raise ClassError(f'{path}: lecturers is {found["lecturers"]!r}: give a list of names, as ["eva"]')
        found["lecturers"] = tuple(found["lecturers"])
    try:
        settings = ClassSettings(**found)
    except ClassError as error:
        raise ClassError(f"{path}: {error}") from None
    separate = settings.domain or settings.open
    if not separate and (settings.group or len({*settings.names(), *settings.lecturers}) > 1):
        raise ClassError(
            f"{path}: all users would share one host name, and a click on a classmate's link could give away an "
            'account: set domain (on loopback domain = "class.localhost"), or open = true if all trust each other'
        )
    return settings


def read_class_list(path: Path) -> list[str]:
    """Return the names in a class list, one in each line; empty lines and comments after # are ignored.

    Raises
    ------
    ClassError
        If it cannot be read, is empty, or has a name that is invalid or occurs twice.
    """
    try:
        text = read_text(path, most=MOST_OF_SETTINGS)
    except BttlabError as error:
        raise ClassError(f"the class list {error}") from None
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

"""Check a host before a class starts on it: each error is one line that names the remedy."""

import grp
import os
import pwd
import shutil
import socket
import ssl
import stat
import subprocess
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from cryptography.x509 import DNSName, ExtensionNotFound, SubjectAlternativeName, load_pem_x509_certificate

from bttlab.teaching.course import COURSE
from bttlab.util.trust import changeable_by_others
from class_settings import ClassError, ClassSettings, last_line
from class_spawner import SERVER

PROXY = "configurable-http-proxy"
PROXY_FOLDER = Path(__file__).resolve().parent / "proxy"
XILINX = "0x10ee"
DRM = Path("/sys/class/drm")
DEVICES = Path("/dev/dri")
SYSTEM_UIDS = 1000  # smaller user ids, and that of nobody, are system accounts
NOBODY = 65534


def check_host(settings: ClassSettings) -> None:
    """Check everything that the hub needs.

    Raises
    ------
    ClassError
        For the first thing that is missing.
    """
    if os.geteuid() != 0:
        raise ClassError("the hub starts each student's server as that student, which only root can: sudo make class …")
    if proxy_command() is None:
        raise ClassError(f"there is no {PROXY}: apt-get install npm && npm ci --prefix {PROXY_FOLDER} --ignore-scripts")
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
            raise ClassError(f"{file} does not exist: settings certificate and key name files in PEM")
    if settings.key and stat.S_IMODE(settings.key.stat().st_mode) & 0o077:
        raise ClassError(f"{settings.key}, the key, is open to others: chmod 600 {settings.key}")
    if settings.certificate:
        check_certificate(settings.certificate, settings.key, settings.domain)
    for folder in filter(None, (settings.data, settings.overlays)):
        if not folder.is_dir():
            raise ClassError(f"the shared folder {folder} does not exist")
        check_readable(folder, names)
        # What a manifest lists is code, which students run: a lecturer's is theirs alone.
        trusted = [pwd.getpwnam(name).pw_uid for name in settings.lecturers] if folder == settings.data else []
        if (changeable := changeable_by_others(folder, trusted)) is not None:
            raise ClassError(f"students share {folder}, but {changeable[1]}")
    if settings.exchange:
        check_exchange(settings.exchange, settings.lecturers)
    check_python(settings.python)
    check_cards(names)
    if not settings.emulated_cards and not card_nodes():
        raise ClassError("emulated_cards = 0, and this host has no card: nobody could train; set emulated_cards = 1")


def check_certificate(certificate: Path, key: Path, domain: str) -> None:
    """Check that a certificate and a key are a pair, and that it is valid now, for the domain and its subdomains.

    Raises
    ------
    ClassError
        If not.
    """
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password=lambda: "")  # else it asks for one at the terminal
        found = load_pem_x509_certificate(certificate.read_bytes())
    except (OSError, ValueError) as error:
        raise ClassError(
            f"{certificate} and {key} are no certificate with its key ({error}): name both in PEM, the key without a "
            "password"
        ) from None
    if not found.not_valid_before_utc <= datetime.now(timezone.utc) <= found.not_valid_after_utc:
        raise ClassError(
            f"the certificate {certificate} is valid from {found.not_valid_before_utc:%Y-%m-%d} to "
            f"{found.not_valid_after_utc:%Y-%m-%d}: browsers refuse it; renew it, or set the host's clock"
        )
    if domain:
        try:
            names = found.extensions.get_extension_for_class(SubjectAlternativeName).value.get_values_for_type(DNSName)
        except ExtensionNotFound:
            names = []
        if missing := [name for name in (domain, f"*.{domain}") if name not in map(str.lower, names)]:
            raise ClassError(
                f"the certificate {certificate} is for {', '.join(names) or 'no name'}, and not for "
                f"{' and '.join(missing)}: browsers refuse students' servers; get one for these names"
            )


def check_readable(folder: Path, names: Sequence[str]) -> None:
    """Check that every student can read all of a shared folder: notebooks take another corpus without a word.

    Raises
    ------
    ClassError
        For the first student who cannot.
    """
    closed = ["!", "-readable", "-o", "-type", "d", "!", "-executable"]
    for name in names:
        user = pwd.getpwnam(name)
        groups = os.getgrouplist(name, user.pw_gid)
        found = subprocess.run(
            ["find", "-L", str(folder), *closed],
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=groups,
            cwd="/",
            capture_output=True,
            text=True,
        )
        if found.returncode or found.stdout:
            place = (found.stdout.splitlines() or [last_line(found.stderr)])[0]
            remedy = f"chmod -R o+rX {folder}, and o+x the folders above"
            raise ClassError(f"{name} cannot read the shared folder {folder} ({place}): {remedy}")


def proxy_command() -> str | None:
    """Return JupyterHub's proxy: the one that its lock in `proxy` installs, else one in the PATH; None without one."""
    return shutil.which(PROXY, path=PROXY_FOLDER / "node_modules" / ".bin") or shutil.which(PROXY)


def check_accounts(names: list[str]) -> None:
    """Check that every name is a person's account.

    Raises
    ------
    ClassError
        For the first name that is not.
    """
    for name in names:
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            raise ClassError(
                f"{name} has no account on this host: classroom/accounts.py creates those of a class list"
            ) from None
        if not SYSTEM_UIDS <= user.pw_uid < NOBODY:
            raise ClassError(f"{name} is a system account (uid {user.pw_uid}), not a student's: take it out")


def check_port(address: str, port: int) -> None:
    """Check that a port is free.

    Raises
    ------
    ClassError
        If it is in use, or the address does not belong to this machine.
    """
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            hint = f"ss -ltnp 'sport = {port}' shows what uses it; or set another port"
            raise ClassError(f"port {port} at {address} cannot be used ({error.strerror}): {hint}") from None


def check_exchange(exchange: Path, lecturers: Sequence[str]) -> None:
    """Check that every student can submit, and that the course's folder in the exchange belongs to a lecturer.

    Raises
    ------
    ClassError
        If not.
    """
    if not exchange.is_dir() or exchange.stat().st_mode & 0o1777 != 0o1777:
        raise ClassError(
            f"students cannot submit to the exchange {exchange}: mkdir -p {exchange}; chmod 1777 {exchange}"
        )
    for place in exchange.resolve().parents:
        if not place.stat().st_mode & stat.S_IXOTH:
            raise ClassError(
                f"students cannot enter {place}, in which the exchange {exchange} is: put the exchange elsewhere, and "
                "leave a course's folder closed"
            )
    course = exchange / COURSE
    if not course.is_dir():
        hint = "release an assignment first (docs/teaching.md), before a student creates it"
        raise ClassError(f"the exchange {exchange} has no folder {COURSE} for the course: {hint}")
    if course.stat().st_uid not in {0, *(pwd.getpwnam(name).pw_uid for name in lecturers)}:
        raise ClassError(
            f"{course} belongs to {_owner(course)}, who is not a lecturer: remove it, and release an assignment again"
        )


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except KeyError:
        return f"uid {path.stat().st_uid}"


def check_python(python: Path) -> None:
    """Check that students can run the Python of their servers, and that it has the packages they need.

    Raises
    ------
    ClassError
        If the user nobody cannot run it.
    """
    for file in (python, SERVER):
        for place in dict.fromkeys((*file.parents, *Path(os.path.realpath(file)).parents)):
            if place.exists() and not place.stat().st_mode & stat.S_IXOTH:
                raise ClassError(
                    f"students cannot run {file}: they have no access to {place}. Put the checkout where all can read "
                    "it, and make its environment with the system's Python: make environment PYTHON=/usr/bin/python3"
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
    """Return the device node of each card of the host, by the card's PCIe address."""
    found = {}
    for vendor in sorted(system.glob("renderD*/device/vendor")):
        node = devices / vendor.parents[1].name
        if vendor.read_text().strip() == XILINX and node.exists():
            found[vendor.parent.resolve().name] = node
    return found


def check_cards(names: list[str], devices: Path = DEVICES, system: Path = DRM) -> None:
    """Check that every student may open every card of the host.

    Raises
    ------
    ClassError
        For the first student who may not.
    """
    for node in card_nodes(devices, system).values():
        found = node.stat()
        if found.st_mode & 0o006 == 0o006:
            continue
        group = grp.getgrgid(found.st_gid)
        if found.st_mode & 0o060 != 0o060:
            raise ClassError(f"only its owner can open the card {node}: chmod 660 {node}")
        for name in names:
            if group.gr_gid not in os.getgrouplist(name, pwd.getpwnam(name).pw_gid):
                raise ClassError(
                    f"{name} cannot open the card {node}, which belongs to group {group.gr_name}: "
                    f"usermod -aG {group.gr_name} {name}"
                )

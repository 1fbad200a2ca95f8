"""Whom this user trusts with files that are code: who else can change them, and which of them this user made."""

import grp
import hmac
import os
import pwd
import stat
from collections.abc import Collection
from functools import cache
from pathlib import Path

from bttlab.util.files import write_new_file

SECRET_FILE = "secret"  # in the user's data folder
SECRET_BYTES = 32


def changeable_by_others(path: str | Path, trusted: Collection[int] = ()) -> tuple[Path, str] | None:
    """Return what lets another user change a file, and how; None if nothing does.

    It is the file, or a folder on the way to it, also through links. The file need not be there yet. A folder in which
    only owners may remove names, as /tmp, may be writable. Trusted are root, this user, whoever can change this
    program, and the users of `trusted`; and a group that has no other members.
    """
    program = os.stat(__file__)
    uids = {0, os.geteuid(), program.st_uid, *trusted}
    ways = [Path(way) for way in (os.path.abspath(path), os.path.realpath(path))]
    for place in dict.fromkeys(place for way in ways for place in (way, *way.parents)):
        try:
            status = place.stat()
        except FileNotFoundError:
            continue
        if status.st_uid not in uids:
            return place, f"{place} belongs to {_account(status.st_uid)}; copy it to a folder of yours"
        if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
            continue
        if status.st_mode & stat.S_IWOTH:
            return place, f"every user of this machine can write to {place}; chmod o-w {place}"
        of_program = program.st_mode & stat.S_IWGRP and status.st_gid == program.st_gid
        if status.st_mode & stat.S_IWGRP and not of_program and not _has_only(status.st_gid, frozenset(uids)):
            return place, f"group {_group(status.st_gid)} can write to {place}; chmod g-w {place}"
    return None


@cache
def _has_only(gid: int, uids: frozenset[int]) -> bool:
    """Return whether a group has members, all among some users; one with the name of a user has that one."""
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    members = {account.pw_uid for account in pwd.getpwall() if account.pw_gid == gid}
    for name in (*group.gr_mem, group.gr_name):
        try:
            members.add(pwd.getpwnam(name).pw_uid)
        except KeyError:
            continue
    return bool(members) and members <= uids


def _account(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user with uid {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def seal(digest: str) -> str:
    """Return what only this user can compute of a digest: an HMAC with a secret, which is made if there is none.

    Raises OSError if the secret cannot be written or read, or others can read it.
    """
    path = _secret_path()
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    try:
        write_new_file(path, os.urandom(SECRET_BYTES), 0o600)
    except FileExistsError:
        pass
    return _seal(_read_secret(), digest)


def is_sealed(seal: str, digest: str) -> bool:
    """Return whether `seal` of this user made a seal for a digest."""
    try:
        return hmac.compare_digest(_seal(_read_secret(), digest).encode(), seal.encode())
    except OSError:
        return False


def _seal(secret: bytes, digest: str) -> str:
    return hmac.digest(secret, digest.encode(), "sha256").hex()


def _secret_path() -> Path:
    import platformdirs

    return platformdirs.user_data_path("bttlab") / SECRET_FILE


def _read_secret() -> bytes:
    path = _secret_path()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        status, secret = os.fstat(descriptor), file.read(SECRET_BYTES + 1)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077 or len(secret) != SECRET_BYTES:
        raise PermissionError(0, "it is not a secret of this user alone: remove it", str(path))
    return secret

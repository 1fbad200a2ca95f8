"""A network of their own for the processes of a run, which nobody else on the host can connect to.

Linux gives every user network namespaces, inside of user namespaces, unless an administrator forbids it.
"""

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

_NAMESPACES = {"user": 0x10000000, "net": 0x40000000}  # CLONE_NEWUSER and CLONE_NEWNET of <linux/sched.h>
_SET_FLAGS, _UP = 0x8914, 1  # SIOCSIFFLAGS and IFF_UP of <linux/sockios.h> and <linux/if.h>


def make_network() -> bool:
    """Take this process, which must have one thread, into a new network that is nothing but loopback.

    Returns
    -------
    bool
        False where the system does not allow it; nothing is changed then.
    """
    child = os.fork()
    if child == 0:  # a process cannot go back, so another one tries it first
        try:
            _make()
            os._exit(0)
        finally:
            os._exit(1)
    allowed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    if allowed:
        _make()
    return allowed


def join_network(process: int) -> None:
    """Take this process, which must have one thread, into the network of another one of this user.

    Raises
    ------
    OSError
        If the other process has ended, or is another user's.
    """
    for name, kind in _NAMESPACES.items():
        with open(f"/proc/{process}/ns/{name}") as namespace:
            _call("setns", namespace.fileno(), kind)


def _make() -> None:
    user, group = os.geteuid(), os.getegid()
    _call("unshare", sum(_NAMESPACES.values()))
    # What this process writes is the user's, as before.
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path(f"/proc/self/{name}").write_text(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh22x", b"lo", _UP))


def _call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))

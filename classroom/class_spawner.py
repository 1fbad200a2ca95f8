"""Students' servers: what each may use, and what only its owner may reach.

With systemd each server is a unit, and the kernel limits memory and processors of all its processes together. Without,
limits are those that a process hands on to its children (setrlimit, a set of processors): README.md says what they
leave open.
"""

import os
import pwd
import resource
import shutil
from pathlib import Path

from jupyterhub.spawner import LocalProcessSpawner
from systemdspawner import SystemdSpawner
from traitlets import Int, Unicode
from traitlets.config import Configurable

from bttlab.card.facts import U50
from bttlab.card.hbm import GUARD

SYSTEMD = Path("/run/systemd/system")  # there where systemd is what started the machine
CARD_BYTES = U50.hbm_bytes + GUARD  # of addresses: the limit counts what is reserved, used or not
SERVER = Path(__file__).resolve().with_name("student_server")


class PrivateFolders(Configurable):
    """A spawner's part that keeps a student's home and sockets the student's alone.

    The hub is root, and a home is its owner's, who may put links there: so root writes nothing below one, and what it
    makes for a server lies in a folder whose parent is root's.
    """

    runtime = Unicode(config=True, help="The folder in which each student has one for sockets and certificates.")

    @property
    def private(self) -> Path:
        """The student's folder for sockets: its short name leaves room for theirs, which end after 107 characters."""
        return Path(self.runtime) / self.user.name

    def make_private(self) -> None:
        """Close the home to others, and make the folder for sockets again."""
        user = pwd.getpwnam(self.user.name)
        home = os.open(user.pw_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(home).st_uid != user.pw_uid:
                raise PermissionError(f"the home {user.pw_dir} is not {self.user.name}'s: chown it")
            os.fchmod(home, 0o700)
        finally:
            os.close(home)
        self.private.parent.mkdir(parents=True, exist_ok=True)
        self.private.parent.chmod(0o755)  # the hub's umask closes what it makes
        shutil.rmtree(self.private, ignore_errors=True)
        self.private.mkdir(mode=0o700)
        os.chown(self.private, user.pw_uid, user.pw_gid)

    async def move_certs(self, paths: dict[str, str]) -> dict[str, str]:
        """Hand the certificates of a server to its owner; JupyterHub's own way has root follow links in the home."""
        user = pwd.getpwnam(self.user.name)
        moved = {}
        for name, path in paths.items():
            moved[name] = str(self.private / Path(path).name)
            descriptor = os.open(moved[name], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o400)
            with open(descriptor, "wb") as file:
                file.write(Path(path).read_bytes())
                os.fchown(file.fileno(), user.pw_uid, user.pw_gid)
        return moved

    def get_env(self) -> dict[str, str]:
        """Return the server's variables; kernels' sockets go to the private folder."""
        return super().get_env() | {"JUPYTER_RUNTIME_DIR": str(self.private)}


class UnitSpawner(PrivateFolders, SystemdSpawner):
    """Each server is a unit of systemd."""


class LimitedSpawner(PrivateFolders, LocalProcessSpawner):
    """Each server is a process with limits that its children inherit."""

    processes = Int(512, config=True, help="Processes and threads that a student may have at once.")
    emulated_cards = Int(1, config=True, help="Whose memory a process may reserve on top of its own.")

    def make_preexec_fn(self, name: str):
        """Return what the process does before it becomes the student's: from then on nobody can raise the limits."""
        become, cores = super().make_preexec_fn(name), self.processors()
        limits = {
            resource.RLIMIT_DATA: int(self.mem_limit) + self.emulated_cards * CARD_BYTES,
            resource.RLIMIT_NPROC: self.processes,
            resource.RLIMIT_CORE: 0,
        }

        def limited() -> None:
            for limit, value in limits.items():
                resource.setrlimit(limit, (value, value))
            os.sched_setaffinity(0, cores)
            become()

        return limited

    def processors(self) -> set[int]:
        """Return the processors of this server: as many as it may have, the next student's the next ones."""
        every = sorted(os.sched_getaffinity(0))
        first = pwd.getpwnam(self.user.name).pw_uid * int(self.cpu_limit)
        return {every[(first + k) % len(every)] for k in range(int(self.cpu_limit))}


def spawner_here() -> type:
    """Return the spawner that suits this machine."""
    return UnitSpawner if SYSTEMD.is_dir() else LimitedSpawner

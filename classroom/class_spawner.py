"""Students' servers: their resource limits, and the files that only their owner may access.

With systemd each server is a unit, and the kernel limits memory and processors of all its processes together. Without
systemd, the limits are those that a process passes on to its children (setrlimit, CPU affinity); README.md names what
they do not prevent.
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

from bttlab.card.hbm import GUARD
from bttlab.estimate.facts import U50

SYSTEMD = Path("/run/systemd/system")  # exists if systemd started the machine
CARD_BYTES = U50.hbm_bytes + GUARD  # reserved addresses of an emulated card, which count for the limit
SERVER = Path(__file__).resolve().with_name("student_server")


class PrivateFolders(Configurable):
    """Spawner mixin that makes a student's home and sockets private.

    The hub runs as root, and a student may create links in the home. So root writes nothing there: what it creates for
    a server is in a folder whose parent belongs to root.
    """

    runtime = Unicode(config=True, help="The folder in which each student has one for sockets and certificates.")

    @property
    def private(self) -> Path:
        """The student's folder for sockets, with a short name because a socket's path has at most 107 characters."""
        return Path(self.runtime) / self.user.name

    def make_private(self) -> None:
        """Make the home private, and create the folder for sockets anew."""
        user = pwd.getpwnam(self.user.name)
        home = os.open(user.pw_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(home).st_uid != user.pw_uid:
                raise PermissionError(f"the home {user.pw_dir} does not belong to {self.user.name}: chown it")
            os.fchmod(home, 0o700)
        finally:
            os.close(home)
        self.private.parent.mkdir(parents=True, exist_ok=True)
        self.private.parent.chmod(0o755)  # the hub's umask makes new folders private
        shutil.rmtree(self.private, ignore_errors=True)
        self.private.mkdir(mode=0o700)
        os.chown(self.private, user.pw_uid, user.pw_gid)

    async def move_certs(self, paths: dict[str, str]) -> dict[str, str]:
        """Copy a server's certificates to its owner's folder. JupyterHub's method follows links in the home as root."""
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
        """Return the server's environment variables; kernels' sockets are in the private folder."""
        return super().get_env() | {"JUPYTER_RUNTIME_DIR": str(self.private)}


class UnitSpawner(PrivateFolders, SystemdSpawner):
    """Starts each server as a unit of systemd."""


class LimitedSpawner(PrivateFolders, LocalProcessSpawner):
    """Starts each server as a process with limits that its children inherit."""

    processes = Int(512, config=True, help="Processes and threads that a student may have at once.")
    emulated_cards = Int(1, config=True, help="Number of cards whose memory a process may reserve besides its own.")

    def make_preexec_fn(self, name: str):
        """Return a function that sets the limits before the process becomes the student's, who cannot raise them."""
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
        """Return the processors of this server; those of the next student follow them."""
        every = sorted(os.sched_getaffinity(0))
        first = pwd.getpwnam(self.user.name).pw_uid * int(self.cpu_limit)
        return {every[(first + k) % len(every)] for k in range(int(self.cpu_limit))}


def spawner_here() -> type:
    """Return the spawner class for this machine."""
    return UnitSpawner if SYSTEMD.is_dir() else LimitedSpawner

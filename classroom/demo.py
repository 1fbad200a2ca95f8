"""`make class`: run a hub on loopback for three demo students, whose accounts are removed at the end.

python classroom/demo.py [--port 8000]
"""

import argparse
import os
import pwd
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bttlab
from accounts import make_accounts
from bttlab.teaching.course import make_course
from bttlab.util.errors import BttlabError
from bttlab.util.terminal import say
from class_settings import ClassError, last_line

HERE = Path(__file__).resolve().parent
LAB = "00_start_here"  # the assignment to release
STUDENTS = ("bttlab-ada", "bttlab-bob", "bttlab-cem")
DOMAIN = "bttlab-class.localhost"
SETTINGS = """students = "students.txt"
port = {port}
domain = "{domain}"
memory = "4G"
cores = {cores}
state = "state"
runtime = "run"
python = "{python}"
exchange = "exchange"
"""


@contextmanager
def demo_class(port: int) -> Iterator[tuple[Path, dict[str, str]]]:
    """Create demo students and settings, and remove them at the end.

    Yields
    ------
    path, dict of str to str
        The settings file, and each student's password.

    Raises
    ------
    ClassError
        If the user is not root, there is no Python that students can run, or an account with such a name exists.
    """
    if os.geteuid() != 0:
        raise ClassError("the demo creates accounts for its students, which only root can: sudo make class")
    folder = Path(tempfile.mkdtemp(prefix="bttlab-class-", dir="/tmp"))
    made = []
    try:
        folder.chmod(0o755)
        for name in STUDENTS:
            _remove(name)  # left by a demo that was killed
        python = python_for_students(folder / "python")
        (folder / "students.txt").write_text("\n".join(STUDENTS))
        settings = folder / "class.toml"
        settings.write_text(SETTINGS.format(port=port, domain=DOMAIN, cores=min(2, os.cpu_count() or 1), python=python))
        (folder / "home").mkdir()
        release(folder / "course", folder / "exchange", LAB)
        made = make_accounts(list(STUDENTS), folder / "sheet", homes=folder / "home")
        sheet = (folder / "sheet").read_text().splitlines()
        yield settings, dict(line.split() for line in sheet)
    finally:
        for name in made:
            _remove(name)
        shutil.rmtree(folder, ignore_errors=True)


def release(course: Path, exchange: Path, lab: str) -> None:
    """Make a course, which nobody else can enter, and release one of its labs in an exchange beside it.

    Raises
    ------
    ClassError
        If nbgrader fails.
    """
    make_course(course)
    exchange.mkdir()
    exchange.chmod(0o1777)
    search_path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))  # nbgrader starts `alembic`
    for command in ("generate_assignment", "release_assignment"):
        code, stderr = run_whole(
            [sys.executable, "-m", "nbgrader", command, lab],
            cwd=course,
            env=os.environ | {"PATH": search_path, "BTTLAB_EXCHANGE": str(exchange)},
        )
        if code:
            why = last_line(stderr)
            raise ClassError(f"nbgrader {command} {lab} failed ({why}): make environment installs nbgrader")


def run_whole(command: list[str], **keywords: Any) -> tuple[int, str]:
    """Run a command, and return its exit code and stderr; an interrupt ends what it has started, too."""
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, start_new_session=True, text=True, **pipes, **keywords)
    try:
        _, stderr = process.communicate()
        return process.returncode, stderr
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise


def _remove(name: str) -> None:
    """Remove a demo student, whose processes the hub has ended, but no other account with that name."""
    try:
        home = Path(pwd.getpwnam(name).pw_dir)
    except KeyError:
        return
    if not home.parent.parent.name.startswith("bttlab-class-"):
        raise ClassError(f"{name} is an account of this machine, with the home {home}: the demo needs the name")
    for _ in range(20):  # the last processes may not have ended
        done = subprocess.run(["userdel", name], capture_output=True, text=True)
        if done.returncode == 0:
            return
        time.sleep(0.5)
    raise ClassError(f"{name} cannot be removed ({done.stderr.strip()}): is another demo running?")


def python_for_students(folder: Path) -> Path:
    """Return a Python that students can run: this one, or the system's Python with the packages of this one.

    Raises
    ------
    ClassError
        If there is none.
    """
    from host_checks import check_python

    try:
        check_python(Path(sys.executable))
        return Path(sys.executable)
    except ClassError as error:
        system = shutil.which(f"python{sys.version_info[0]}.{sys.version_info[1]}", path="/usr/bin:/usr/local/bin")
        if system is None:
            raise error
    subprocess.run([system, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    places = [place for place in sys.path if "-packages" in place] + [str(Path(bttlab.__file__).parents[1])]
    (packages / "of_the_host.pth").write_text("\n".join(places))
    for name in ("share", "etc"):  # JupyterLab's pages and its extensions
        if (Path(sys.prefix) / name).exists():
            (folder / name).symlink_to(Path(sys.prefix) / name)
    check_python(folder / "bin" / "python")
    return folder / "bin" / "python"


def main() -> int:
    """Run the command line; after an error, print one line and return 2."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with demo_class(options.port) as (settings, passwords):
            for name, password in passwords.items():
                say(f"http://{DOMAIN}:{options.port}   {name}   {password}")
            hub = subprocess.Popen([sys.executable, str(HERE / "start.py"), str(settings)])
            try:
                return hub.wait()
            except (KeyboardInterrupt, SystemExit):
                hub.terminate()
                return hub.wait(60)
    except BttlabError as error:
        say(error)
        return 2


if __name__ == "__main__":
    sys.exit(main())

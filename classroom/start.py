"""The hub of a class: checks the settings and the host, then runs JupyterHub.

python classroom/start.py /etc/bttlab/class.toml [--check]
"""

import argparse
import os
import sys
from pathlib import Path

from bttlab.card.card_lock import ADMINISTRATORS
from bttlab.errors import BttlabError
from bttlab.terminal import say
from class_settings import PAM_SERVICE, ClassError, ClassSettings, read_settings

HERE = Path(__file__).resolve().parent


def make_folders(settings: ClassSettings) -> None:
    """Make the folders of the keepers' sockets, in which only root can plant a name, and the hub's own."""
    for folder in (settings.shared_cards, ADMINISTRATORS):
        folder.mkdir(parents=True, exist_ok=True)
    for folder in (settings.shared_cards.parent, settings.shared_cards, ADMINISTRATORS):
        folder.chmod(0o755)
    settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings.state.chmod(0o700)


def main() -> int:
    """Run the command line; the exit code is 2 where something is wrong, said in one line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("settings", type=Path, help="a TOML file as classroom/class.toml")
    parser.add_argument("--check", action="store_true", help="check, and start nothing")
    options = parser.parse_args()
    try:
        settings = read_settings(options.settings)
        settings.names()
        try:
            from class_spawner import LimitedSpawner, spawner_here
            from host_checks import check_host
        except ModuleNotFoundError as error:
            raise ClassError(f"there is no {error.name} in {sys.prefix}: make environment installs it") from None
        check_host(settings)
    except BttlabError as error:
        say(error)
        return 2
    if spawner_here() is LimitedSpawner:
        say(
            "no systemd here: memory is limited for each process, not for a student's processes together, and a "
            "student can leave the processors that the server was given (classroom/README.md)"
        )
    if not (Path("/etc/pam.d") / PAM_SERVICE).exists():
        say(f"passwords can be guessed without end: cp {HERE / 'pam.d' / PAM_SERVICE} /etc/pam.d (classroom/README.md)")
    if options.check:
        say("the host is ready")
        return 0
    make_folders(settings)
    os.environ["BTTLAB_CLASS"] = str(options.settings.resolve())
    os.umask(0o077)
    os.chdir(settings.state)
    command = [sys.executable, "-m", "jupyterhub", f"--config={HERE / 'jupyterhub_config.py'}"]
    os.execv(command[0], command)


if __name__ == "__main__":
    sys.exit(main())

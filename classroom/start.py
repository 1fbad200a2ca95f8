"""Check the settings and the host of a class, then run JupyterHub.

python classroom/start.py /etc/bttlab/class.toml [--check]
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

from bttlab.util.errors import BttlabError
from bttlab.util.terminal import say
from class_settings import PAM_SERVICE, ClassError, ClassSettings, read_settings

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Run the command line; after an error, print one line and return 2."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("settings", type=Path, help="a TOML file like classroom/class.toml")
    parser.add_argument("--check", action="store_true", help="only check, do not start the hub")
    options = parser.parse_args()
    try:
        settings = read_settings(options.settings)
        settings.names()
        try:
            from bttlab.card.sharing import FOLDER
            from class_spawner import LimitedSpawner, spawner_here
            from host_checks import card_nodes, check_host
        except ModuleNotFoundError as error:
            raise ClassError(f"{error.name} is missing in {sys.prefix}: make environment installs it") from None
        check_host(settings)
    except BttlabError as error:
        say(error)
        return 2
    if spawner_here() is LimitedSpawner:
        say(
            "no systemd on this host: memory is limited for each process, not for a student's processes together, and "
            "a student can use other processors than those of the server (classroom/README.md)"
        )
    for line in open_doors(settings):
        say(line)
    for card in card_nodes():
        if not (FOLDER / f"bttlab-{card}.shared").exists():
            say(f"the card {card} is not shared: one process at a time can use it (docs/hosts.md)")
    if options.check:
        say("the host is ready")
        return 0
    settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings.state.chmod(0o700)
    if forget_certificates(settings):
        say("certificates inside the hub are made again, with the domain: restart servers that still run")
    os.environ["BTTLAB_CLASS"] = str(options.settings.resolve())
    os.umask(0o077)
    os.chdir(settings.state)
    command = [sys.executable, "-m", "jupyterhub", f"--config={HERE / 'jupyterhub_config.py'}"]
    os.execv(command[0], command)


def open_doors(settings: ClassSettings) -> list[str]:
    """Return a line for each thing that the settings leave open to students."""
    lines = []
    if settings.open:
        lines.append("this class is open: a page of one student can act as the student who reads it (docs/security.md)")
    if settings.domain and not settings.certificate:
        lines.append(
            "without a certificate a page of one student can log its reader in as that student (docs/security.md): "
            "give certificate and key"
        )
    if not (Path("/etc/pam.d") / PAM_SERVICE).exists():
        lines.append(
            f"the number of wrong passwords is not limited: cp {HERE / 'pam.d' / PAM_SERVICE} /etc/pam.d "
            "(classroom/README.md)"
        )
    return lines


def forget_certificates(settings: ClassSettings) -> bool:
    """Remove JupyterHub's own certificates if they are for another domain, since it keeps them for ever.

    Returns
    -------
    bool
        Whether there were some.
    """
    from cryptography.x509 import DNSName, SubjectAlternativeName, load_pem_x509_certificate

    folder = settings.state / "internal-ssl"
    file = folder / "hub-internal" / "hub-internal.crt"
    if not settings.domain or not file.exists():
        return False
    names = load_pem_x509_certificate(file.read_bytes()).extensions.get_extension_for_class(SubjectAlternativeName)
    if f"*.{settings.domain}" in names.value.get_values_for_type(DNSName):
        return False
    shutil.rmtree(folder)
    return True


if __name__ == "__main__":
    sys.exit(main())

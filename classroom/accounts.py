"""Create the missing accounts of a class list, each with its own password.

    python classroom/accounts.py students.txt --sheet passwords.txt [--group render] [--homes /home]

The sheet has a line with name and password for each new account, and only you can read it. Hand out the lines, then
remove the sheet.
"""

import argparse
import os
import pwd
import secrets
import subprocess
import sys
from pathlib import Path

from bttlab.util.errors import BttlabError
from bttlab.util.terminal import say
from class_settings import ClassError, read_class_list

LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # without characters that look alike
LENGTH = 12  # 59 bits


def make_accounts(names: list[str], sheet: Path, group: str | None = None, homes: Path = Path("/home")) -> list[str]:
    """Create the missing accounts; existing ones do not change.

    Parameters
    ----------
    names : list of str
        From `read_class_list`.
    sheet : path
        New file for the passwords; an existing file is not overwritten.
    group : str, optional
        A group to add the new accounts to, such as that of a card.
    homes : path
        Folder of the home directories.

    Returns
    -------
    list of str
        The names of new accounts.

    Raises
    ------
    ClassError
        If the sheet exists already, or the system refuses an account.
    """
    missing = [name for name in names if not _exists(name)]
    if not missing:
        return []
    try:
        descriptor = os.open(sheet, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ClassError(f"cannot create the sheet of passwords {sheet} ({error.strerror}): name a new file") from None
    with open(descriptor, "wb", buffering=0) as file:
        for name in missing:
            password = "".join(secrets.choice(LETTERS) for _ in range(LENGTH))
            try:  # first: an account whose password nobody has is of no use
                file.write(f"{name} {password}\n".encode())
            except OSError as error:
                raise ClassError(f"the sheet {sheet} cannot be written ({error.strerror}): make room") from None
            _run(
                ["useradd", "--create-home", "--base-dir", str(homes), "--shell", "/bin/bash"]
                + (["--groups", group] if group else [])
                + [name]
            )
            (homes / name).chmod(0o700)
            _run(["chpasswd"], f"{name}:{password}\n")  # not as an argument, which every user can read
    return missing


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _run(command: list[str], text: str = "") -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        raise ClassError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


def main() -> int:
    """Run the command line; after an error, print one line and return 2."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("list", type=Path, help="the class list, with one name in each line")
    parser.add_argument("--sheet", type=Path, required=True, help="a new file for the passwords")
    parser.add_argument("--group", help="a group to add them to, such as the card's: render")
    parser.add_argument("--homes", type=Path, default=Path("/home"))
    options = parser.parse_args()
    try:
        if os.geteuid() != 0:
            raise ClassError("only root can create accounts: use sudo")
        names = read_class_list(options.list)
        new = make_accounts(names, options.sheet, options.group, options.homes)
    except BttlabError as error:
        say(error)
        return 2
    say(
        f"{len(new)} new accounts, {len(names) - len(new)} existed" + (f"; passwords in {options.sheet}" if new else "")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

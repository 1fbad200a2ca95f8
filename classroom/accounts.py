"""Accounts for a class list: those that are missing are made, each with a password of its own.

    python classroom/accounts.py students.txt --sheet passwords.txt [--group render] [--homes /home]

The sheet has a line for each new account, name and password, and is yours alone: hand out the lines, then remove it.
"""

import argparse
import os
import pwd
import secrets
import subprocess
import sys
from pathlib import Path

from bttlab.errors import BttlabError
from bttlab.terminal import say
from class_settings import ClassError, read_class_list

LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # none that is taken for another
LENGTH = 12  # 59 bits


def make_accounts(names: list[str], sheet: Path, group: str | None = None, homes: Path = Path("/home")) -> list[str]:
    """Make the accounts that are missing; those that are there stay as they are.

    Parameters
    ----------
    names : list of str
        From `read_class_list`.
    sheet : path
        Of the passwords; a file that is there already is not written over.
    group : str, optional
        A group that they are members of, as a card's.
    homes : path
        Where their homes go.

    Returns
    -------
    list of str
        The names of new accounts.

    Raises
    ------
    ClassError
        If the sheet is there already, or the system refuses an account.
    """
    missing = [name for name in names if not _exists(name)]
    if not missing:
        return []
    try:
        descriptor = os.open(sheet, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ClassError(f"the sheet of passwords {sheet} cannot be made ({error.strerror}): name a new file") from None
    with open(descriptor, "w") as file:
        for name in missing:
            password = "".join(secrets.choice(LETTERS) for _ in range(LENGTH))
            _run(
                ["useradd", "--create-home", "--base-dir", str(homes), "--shell", "/bin/bash"]
                + (["--groups", group] if group else [])
                + [name]
            )
            (homes / name).chmod(0o700)
            _run(["chpasswd"], f"{name}:{password}\n")  # not among arguments, which every user can read
            file.write(f"{name} {password}\n")
            file.flush()
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
    """Run the command line; the exit code is 2 where something is wrong, said in one line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("list", type=Path, help="the class list: one name a line")
    parser.add_argument("--sheet", type=Path, required=True, help="a new file for the passwords")
    parser.add_argument("--group", help="a group to put them in, as the card's: render")
    parser.add_argument("--homes", type=Path, default=Path("/home"))
    options = parser.parse_args()
    try:
        if os.geteuid() != 0:
            raise ClassError("making accounts takes root: sudo")
        names = read_class_list(options.list)
        new = make_accounts(names, options.sheet, options.group, options.homes)
    except BttlabError as error:
        say(error)
        return 2
    say(
        f"{len(new)} new accounts, {len(names) - len(new)} were there"
        + (f"; passwords in {options.sheet}" if new else "")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Create the missing accounts of a class list, each with its own password.

    python classroom/accounts.py students.txt --sheet passwords.txt [--group render] [--homes /home]

The sheet has a line with name and password for each new account, and only you can read it. Hand out the lines, then
remove the sheet.
"""

import argparse
import grp
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
        If the group is unknown, a home or the sheet exists already, or the system refuses an account. The sheet then
        has the accounts that were made before, and is removed if there are none.
    """
    missing = [name for name in names if not _exists(name)]
    if not missing:
        return []
    if group and not _has_group(group):
        raise ClassError(f"there is no group {group}: groupadd {group}")
    for home in (homes / name for name in missing):
        if home.exists():  # its files are another user's, and useradd would leave it to that one
            raise ClassError(f"{home} is there, and {home.name} has no account: move it away, or name other --homes")
    try:
        descriptor = os.open(sheet, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ClassError(f"cannot create the sheet of passwords {sheet} ({error.strerror}): name a new file") from None
    made = []
    try:
        with open(descriptor, "wb", buffering=0) as file:
            for name in missing:
                password, end = "".join(secrets.choice(LETTERS) for _ in range(LENGTH)), file.tell()
                try:  # first: an account whose password nobody has is of no use
                    file.write(f"{name} {password}\n".encode())
                    _make_account(name, password, group, homes)
                except OSError as error:
                    file.truncate(end)
                    raise ClassError(f"the sheet {sheet} cannot be written ({error.strerror}): make room") from None
                except ClassError:
                    file.truncate(end)  # no password of an account that is not there
                    raise
                made.append(name)
    except ClassError as error:
        if not made:
            sheet.unlink()
            raise
        done = f"accounts made before it: {len(made)}, with passwords in {sheet}; name a new sheet for the others"
        raise ClassError(f"{error}; {done}") from None
    return made


def _make_account(name: str, password: str, group: str | None, homes: Path) -> None:
    """Create an account with its home and password, or nothing."""
    groups = ["--groups", group] if group else []
    _run(["useradd", "--create-home", "--base-dir", str(homes), "--shell", "/bin/bash", *groups, name])
    (homes / name).chmod(0o700)
    try:
        _run(["chpasswd"], f"{name}:{password}\n")  # not as an argument, which every user can read
    except ClassError:
        _run(["userdel", "--remove", name])
        raise


def _has_group(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _run(command: list[str], text: str = "") -> None:
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True)
    except FileNotFoundError:
        raise ClassError(f"there is no {command[0]}: apt-get install passwd, or have /usr/sbin in the PATH") from None
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

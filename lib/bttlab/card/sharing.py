"""One card for many processes: a line in a file, first come first served, and a slice of training at a time.

A card is shared if its file is there: `bttlab-CARD.shared` in /run/bttlab, which is an administrator's, or, for an
emulated card, in the folder that $BTTLAB_SHARED_EMULATED names. The file has records of 64 bytes. The first is the
card's: whose slice it is. Each other one is a place in line, and is taken as long as a process has it locked; so who
dies is out of the line at once, and nobody has to tidy up after him. The card's record is changed by who has it locked,
for some microseconds.

Who is first in line takes the card when the one before has left. A stopped process (SIGSTOP) leaves no place, so those
behind it do not wait for ever: a slice that has lasted too long is over, as is the turn of who does not take it. Both
see that when they go on, and get in line anew.
"""

import grp
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bttlab.card.card_lock import (
    ADMINISTRATORS,
    CardBusyError,
    fault,
    file_name,
    lock_folder,
    open_lock,
    process_in_words,
    user_name,
)
from bttlab.errors import BttlabError
from bttlab.locks import lock_part, part_is_held, unlock_part

FOLDER_VARIABLE = "BTTLAB_SHARED_EMULATED"
SLICE_SECONDS = 0.3
OVERDUE_SECONDS = 3.0  # that a slice may last, whatever happens
LOADING_SECONDS = 60.0  # the same for one in which an overlay is loaded
BATCH_SECONDS = 10.0  # for which those who need the overlay on the card go before the others
POLL_SECONDS = 0.002  # between two looks at who has the card, of who is next
LOOK_SECONDS = 0.2  # between two looks at the whole line
GUARD_SECONDS = 60.0
PLACES = 127
RECORD_BYTES = 64
_CARD = np.dtype(
    {
        "names": ["holder", "drawn", "since", "loaded", "allowed", "overlay"],
        "formats": ["<u8", "<u8", "<f8", "<f8", "<f8", "<u8"],
        "itemsize": RECORD_BYTES,
    }
)
_PLACE = np.dtype(
    {
        "names": ["ticket", "overlay", "since", "process"],
        "formats": ["<u8", "<u8", "<f8", "<i4"],
        "itemsize": RECORD_BYTES,
    }
)
_TICKETS = 1 << 63


class CardLostError(Exception):
    """The slice is over, and another process may have the card: what was on the chip is gone."""


@dataclass(frozen=True)
class Waiting:
    """Who is in line; the first of a line may be on the card.

    Attributes
    ----------
    process : int
    since : float
        When it got in line, in seconds of time.monotonic.
    is_on_card : bool
    """

    process: int
    since: float
    is_on_card: bool

    def __str__(self) -> str:
        return process_in_words(self.process)


@dataclass(frozen=True)
class Taken:
    """A slice that has begun.

    Attributes
    ----------
    is_unbroken : bool
        Whether nobody had the card since this line's last slice.
    has_overlay : bool
        Whether the overlay on the card is the one that was asked for.
    """

    is_unbroken: bool
    has_overlay: bool


def shared_file(card: str, emulated: bool) -> Path | None:
    """Return the file that declares a card shared; None where it is not.

    Parameters
    ----------
    card : str
        Its name: `card_lock.card_name`.
    emulated : bool
        Whether $BTTLAB_SHARED_EMULATED counts as well.

    Raises
    ------
    BttlabError
        If that names no folder.
    """
    folders = [ADMINISTRATORS] if lock_folder() == ADMINISTRATORS else []
    named = os.environ.get(FOLDER_VARIABLE, "") if emulated else ""
    if named:
        if not os.path.isdir(named):
            raise BttlabError(f"{FOLDER_VARIABLE} is {named!r}, which is no folder: make it, or unset the variable")
        folders.insert(0, Path(named))
    paths = [folder / file_name(card, "shared") for folder in folders]
    return next((path for path in paths if os.path.lexists(path)), None)


def turn_in_words(line: list[Waiting]) -> str:
    """Return who is on a card, how many are in line, and when a turn would come, given what `CardLine.look` returns."""
    if not line:
        return "nobody is in line, a turn comes at once"
    first = f"{line[0]} is {'on it' if line[0].is_on_card else 'next'}"
    seconds = len(line) * SLICE_SECONDS
    when = f"in about {seconds:.1f} s ({SLICE_SECONDS} s each, modelled)"
    return f"{first}, {len(line) - 1} more in line; a turn comes {when}"


class CardLine:
    """The line for a shared card, and this one's place in it. For one thread at a time.

    Parameters
    ----------
    card : str
    path : path
        The file that `shared_file` found.

    Raises
    ------
    CardBusyError
        If it cannot be opened, or is no regular file with this one name.
    """

    def __init__(self, card: str, path: Path):
        self.card, self.path = card, path
        self._place: int | None = None
        self._ticket = 0
        try:
            self._file = open(open_lock(path), "r+b", buffering=0)  # closed with this
        except OSError as error:
            why = _closed(path) if isinstance(error, PermissionError) else fault(path, error)
            raise CardBusyError(f"{path}, the line for the shared card {card}, cannot be used: {why}") from None

    def look(self) -> list[Waiting]:
        """Return who is on the card and in line, in the order of their turns."""
        card, line = self._read()
        return [Waiting(int(p["process"]), float(p["since"]), p["ticket"] == card["holder"]) for _, p in line]

    def take(self, overlay: int) -> Taken:
        """Wait for the card, behind all who are in line.

        Parameters
        ----------
        overlay : int
            Which one it is needed with: the first 64 bits of its SHA-256.

        Raises
        ------
        CardBusyError
            If there is no place left, the file was removed, or a stopped process keeps the card's record locked.
        """
        if os.fstat(self._file.fileno()).st_nlink == 0:  # who comes now has another file, and does not see this line
            raise CardBusyError(f"{self.path}, the line for {self.card}, was removed meanwhile: start anew")
        before, seen, since = self._ticket, b"", 0.0
        try:
            self._get_in_line(overlay)
            while True:
                card, line = self._read()
                ahead = self._ahead(line)
                if ahead is None:  # this process was stopped when its turn came
                    self._get_in_line(overlay)
                    continue
                if seen != _slice_of(card):
                    seen, since = _slice_of(card), time.monotonic()
                if _may_go(ahead, card, since):
                    with self._guarded():
                        card, line = self._read()
                        ahead = self._ahead(line)
                        if seen == _slice_of(card) and ahead is not None and _may_go(ahead, card, since):
                            return self._go(card, line[:ahead], before, overlay)
                else:
                    self._watch(*line[ahead - 1])
        except BaseException:
            self.leave()
            raise

    def loaded(self, overlay: int) -> None:
        """Say that an overlay is on the card now; the slice begins here."""
        with self._guarded():
            card, _ = self._read()
            if card["holder"] == self._ticket:
                card["overlay"], card["since"], card["loaded"] = overlay, time.monotonic(), time.monotonic()
                card["allowed"] = OVERDUE_SECONDS
                self._write(0, card)

    @property
    def is_mine(self) -> bool:
        """Whether the card is this one's still."""
        return self._place is not None and self._read_record(0, _CARD)["holder"] == self._ticket

    def leave(self) -> None:
        """Give the card, or the place in line, to the next."""
        if self._place is not None:
            self._write(self._place, np.zeros((), _PLACE))
            unlock_part(self._file.fileno(), self._place * RECORD_BYTES, RECORD_BYTES)
            self._place = None

    def _get_in_line(self, overlay: int) -> None:
        with self._guarded():
            if self._place is None:
                self._place = next(filter(self._lock, range(1, PLACES + 1)), None)
            if self._place is None:
                raise CardBusyError(f"all {PLACES} places in line for {self.card} are taken: try again later")
            card = self._read_record(0, _CARD)
            card["drawn"] = self._ticket = int(card["drawn"]) % _TICKETS + 1
            self._write(0, card)
            mine = np.zeros((), _PLACE)
            mine["ticket"], mine["overlay"] = self._ticket, overlay
            mine["since"], mine["process"] = time.monotonic(), os.getpid()
            self._write(self._place, mine)

    def _go(self, card: np.ndarray, passed: list[tuple[int, np.ndarray]], before: int, overlay: int) -> Taken:
        """Take the card, past all who are ahead."""
        for place, _ in passed:
            self._write(place, np.zeros((), _PLACE))
        taken = Taken(before != 0 and card["holder"] == before, bool(card["overlay"] == overlay))
        card["holder"], card["since"] = self._ticket, time.monotonic()
        card["allowed"] = OVERDUE_SECONDS if taken.has_overlay else LOADING_SECONDS
        card["overlay"] = overlay if taken.has_overlay else 0  # until it is loaded
        self._write(0, card)
        return taken

    def _watch(self, place: int, entry: np.ndarray) -> None:
        """Wait until who is just before has left, but not for long: the order may change."""
        ticket, end = entry["ticket"].tobytes(), time.monotonic() + LOOK_SECONDS
        while time.monotonic() < end:
            is_on_card = os.pread(self._file.fileno(), len(ticket), 0) == ticket
            time.sleep(POLL_SECONDS if is_on_card else LOOK_SECONDS / 5)
            if os.pread(self._file.fileno(), len(ticket), place * RECORD_BYTES) != ticket or not self._is_taken(place):
                return

    def _ahead(self, line: list[tuple[int, np.ndarray]]) -> int | None:
        """How many are before this one; None if it is not in line."""
        mine = self._place, self._ticket
        return next((n for n, (place, p) in enumerate(line) if (place, p["ticket"]) == mine), None)

    def _read(self) -> tuple[np.ndarray, list[tuple[int, np.ndarray]]]:
        """The card's record, and the places of the living in the order of their turns."""
        data = os.pread(self._file.fileno(), (PLACES + 1) * RECORD_BYTES, 0).ljust((PLACES + 1) * RECORD_BYTES, b"\0")
        card, places = np.frombuffer(bytearray(data), _CARD, 1)[0], np.frombuffer(data, _PLACE)
        in_line = np.flatnonzero(places["ticket"][1:]) + 1
        in_line = in_line[np.argsort(places["ticket"][in_line])]
        return card, _batched(card, [(int(n), places[n]) for n in in_line if self._is_taken(int(n))])

    def _is_taken(self, place: int) -> bool:
        return place == self._place or part_is_held(self._file.fileno(), place * RECORD_BYTES, RECORD_BYTES)

    def _lock(self, record: int) -> bool:
        return lock_part(self._file.fileno(), record * RECORD_BYTES, RECORD_BYTES)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Have the card's record to oneself."""
        end = time.monotonic() + GUARD_SECONDS
        while not self._lock(0):
            if time.monotonic() > end:
                raise CardBusyError(
                    f"{self.path}, the line for {self.card}, is kept locked by a process: fuser -v {self.path} says by "
                    "which; continue it (kill -CONT) or have it ended"
                )
            time.sleep(POLL_SECONDS / 4)
        try:
            yield
        finally:
            unlock_part(self._file.fileno(), 0, RECORD_BYTES)

    def _read_record(self, record: int, kind: np.dtype) -> np.ndarray:
        data = os.pread(self._file.fileno(), RECORD_BYTES, record * RECORD_BYTES).ljust(RECORD_BYTES, b"\0")
        return np.frombuffer(bytearray(data), kind)[0]

    def _write(self, record: int, values: np.ndarray) -> None:
        os.pwrite(self._file.fileno(), values.tobytes(), record * RECORD_BYTES)


def _closed(path: Path) -> str:
    """Whose a file is that this user may not open."""
    status = path.lstat()
    try:
        group = grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        group = str(status.st_gid)
    return f"it is for user {user_name(status.st_uid)} and group {group} alone; ask an administrator to put you into it"


def _slice_of(card: np.ndarray) -> bytes:
    """What tells a slice from the ones before."""
    return card["holder"].tobytes() + card["since"].tobytes()


def _may_go(ahead: int, card: np.ndarray, since: float) -> bool:
    """Whether it is the turn of who has so many ahead, and sees the same slice since then.

    Each who is ahead has had the time of a slice, by this process's own clock: nothing in the file is to be trusted.
    """
    allowed = float(card["allowed"]) if OVERDUE_SECONDS <= card["allowed"] <= LOADING_SECONDS else OVERDUE_SECONDS
    return time.monotonic() - since >= ahead * allowed


def _batched(card: np.ndarray, line: list[tuple[int, np.ndarray]]) -> list[tuple[int, np.ndarray]]:
    """The order of turns: those who need the overlay on the card first, until the first in line has waited long."""
    on_card = [entry for entry in line if entry[1]["ticket"] == card["holder"]]
    waiting = [entry for entry in line if entry[1]["ticket"] != card["holder"]]
    if waiting and time.monotonic() - max(waiting[0][1]["since"], card["loaded"]) < BATCH_SECONDS:
        waiting.sort(key=lambda entry: entry[1]["overlay"] != card["overlay"])
    return on_card + waiting

"""A keeper of a shared card in a thread of the tests."""

import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bttlab.card.keeper import Keeper

ANSWERS = (sys.executable, "-c", "")  # a probe of a card that answers


class _Stopped(Exception):
    pass


class _Keeper(Keeper):
    is_stopped = False

    def _schedule(self) -> None:
        if self.is_stopped:
            raise _Stopped
        super()._schedule()


@contextmanager
def keeping(path: Path, probe: Sequence[str] = ANSWERS, mode: int = 0o600) -> Iterator[Path]:
    """Keep a card at a socket; yields the path. At the end the keeper is gone as if it had been killed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        path.chmod(mode)
        listener.listen(socket.SOMAXCONN)
        keeper = _Keeper(listener, probe)
        thread = threading.Thread(target=_serve, args=(keeper,), daemon=True)
        thread.start()
        try:
            yield path
        finally:
            keeper.is_stopped = True
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as wake:
                wake.connect(str(path))
                thread.join()
            path.unlink()


def _serve(keeper: _Keeper) -> None:
    try:
        keeper.serve()
    except _Stopped:
        for connection in keeper._clients:
            connection.close()
        keeper._selector.close()

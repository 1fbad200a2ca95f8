"""bttlab.threads."""

import signal
import threading

import pytest

from bttlab.threads import Thread


def test_an_interrupted_join_leaves_the_thread_as_it_is():
    goes_on = threading.Event()
    thread = Thread(target=goes_on.wait, args=(60,), daemon=True)
    thread.start()
    main = threading.main_thread().ident
    threading.Timer(0.2, signal.pthread_kill, [main, signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        thread.join(60)
    assert thread.is_alive()
    thread.join(0.01)
    assert thread.is_alive()
    goes_on.set()
    thread.join()
    assert not thread.is_alive()

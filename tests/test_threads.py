"""bttlab.util.threads."""

import signal
import threading

import pytest

from bttlab.util.threads import Thread


@pytest.mark.parametrize("timeout", [None, 60])
@pytest.mark.parametrize("hears", ["main", "other"])  # the other thread's signal wakes the main one from no wait
def test_an_interrupted_join_leaves_the_thread_as_it_is(hears, timeout):
    goes_on = threading.Event()
    thread = Thread(target=goes_on.wait, args=(10,), daemon=True)
    thread.start()
    heard_by = thread if hears == "other" else threading.main_thread()
    threading.Timer(0.2, signal.pthread_kill, [heard_by.ident, signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        thread.join(timeout)
    assert thread.is_alive()
    thread.join(0.01)
    assert thread.is_alive()
    goes_on.set()
    thread.join()
    assert not thread.is_alive()

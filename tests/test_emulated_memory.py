"""The emulated card's memory: banks with an account, given back to the host when buffers go."""

import gc
import resource

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bttlab.card import U50, EmulatedU50
from bttlab.card.hbm import PAGE, CardMemory, HbmBank
from bttlab.util.errors import BttlabError

pytestmark = pytest.mark.every_python
BANK = U50.hbm_bank_bytes


DESCRIPTION = {"idx": 2, "size": BANK, "base_address": 2 * BANK}


@pytest.fixture
def bank():
    return HbmBank(EmulatedU50(), DESCRIPTION)


@pytest.fixture(params=["emulated", "pyxrt"])
def any_bank(request):
    """A bank of each card that has buffers of this package."""
    card = EmulatedU50() if request.param == "emulated" else request.getfixturevalue("pyxrt_card")
    return HbmBank(card, DESCRIPTION)


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_a_bank_keeps_account(bank):
    assert (bank.mem_used, bank.num_buffers) == (0, 0)
    first, second = bank.allocate(10, "f8"), bank.allocate((PAGE, 2), "u1")
    assert first.device_address == 2 * BANK and second.device_address == 2 * BANK + PAGE
    assert (bank.mem_used, bank.num_buffers) == (3 * PAGE, 2)
    view = first[2:]
    del first
    assert bank.num_buffers == 2  # the view keeps it
    assert view.device_address == 2 * BANK + 16
    del view
    assert (bank.mem_used, bank.num_buffers) == (2 * PAGE, 1)
    third = bank.allocate(1, "u1")
    assert third.device_address == 2 * BANK  # the gap is used again
    with third:
        third.sync_to_device()
    assert bank.num_buffers == 1
    with pytest.raises(BttlabError, match="the buffer was freed"):
        third.sync_to_device()


def test_a_bank_is_256_mb(bank):
    most = bank.allocate(BANK - PAGE, "u1")
    assert bank.allocate(PAGE, "u1").device_address == 3 * BANK - PAGE
    with pytest.raises(BttlabError, match=r"4,097 bytes in HBM\[2\]: at most 4,096 of its 268,435,456 bytes"):
        bank.allocate(PAGE + 1, "u1")
    del most
    with pytest.raises(BttlabError, match="cannot allocate"):
        bank.allocate(BANK // 4 + 1, "u4")
    with pytest.raises(BttlabError, match="at least one"):
        bank.allocate(0)


def test_a_full_bank_gets_back_what_is_garbage(bank):
    gc.disable()
    try:
        owner = [bank.allocate(BANK - PAGE, "u1")]
        owner.append(owner)  # a cycle: only the garbage collector frees it
        del owner
        assert bank.num_buffers == 1
        kept = bank.allocate(BANK - PAGE, "u1")
        assert bank.num_buffers == 1 and kept.device_address == 2 * BANK
    finally:
        gc.enable()


def test_freed_pages_go_back_to_the_host_and_come_back_zero(bank):
    size = 64 << 20
    buffer = bank.allocate(size, "u1")
    buffer[:] = 255
    before = resident_bytes()
    buffer.sync_to_device()
    assert resident_bytes() - before > size // 2
    buffer.freebuffer()
    assert resident_bytes() - before < size // 2
    fresh = bank.allocate(size, "u1")
    assert fresh.device_address == buffer.device_address
    fresh[:] = 1
    fresh.sync_from_device()
    assert not fresh.any()


@pytest.mark.parametrize("call", ["flush", "invalidate", "sync_to_device", "sync_from_device"])
def test_a_pickled_buffer_is_not_synchronised(any_bank, call):
    buffer = any_bank.allocate((4, 4), "f4")
    buffer[:] = 3
    rebuild, arguments, state = buffer.__reduce__()  # which pickle and Dask call
    copy = rebuild(*arguments)
    copy.__setstate__(state)
    assert np.array_equal(copy, buffer) and copy.device_address is None and not hasattr(copy, "device")
    with pytest.raises(BttlabError, match=r"pickled copy .* allocate a buffer and copy it"):
        getattr(copy, call)()


def test_views_that_cannot_be_synchronised(any_bank):
    buffer = any_bank.allocate((4, 6), "f4")
    buffer[:] = np.arange(24).reshape(4, 6)
    buffer.T.sync_to_device()  # the same bytes
    buffer[1:3].sync_to_device()
    for view in (buffer[:, ::2], buffer[::2], buffer[::-1], buffer[:, ::-1], buffer[1:3, 1:3], buffer.ravel()[::-1]):
        for call in (view.sync_to_device, view.sync_from_device):
            with pytest.raises(BttlabError, match="strides"):
                call()
    for stray in (buffer * 2, buffer.copy(), np.sqrt(buffer), buffer[[0, 2]]):
        with pytest.raises(BttlabError, match="not in device memory"):
            stray.sync_to_device()
    buffer[:] = 0
    buffer.sync_from_device()
    np.testing.assert_array_equal(np.asarray(buffer).ravel(), np.arange(24))


def test_addresses_of_views(any_bank):
    buffer = any_bank.allocate((4, 6), "f4")
    base = buffer.device_address
    assert base // BANK == 2 and buffer.offset == 0 and buffer.device is any_bank.device
    for view, offset in [
        (buffer[1:], 24),
        (buffer[1:][1:], 48),
        (buffer[2, 3:], 60),
        (buffer.reshape(24)[5:], 20),
        (buffer.view(np.uint8)[1:], 24),
        (buffer.T, 0),
        (buffer[::2][1:], 48),
        (buffer[::-1], 72),  # of its first element, which is not its lowest address
        (buffer[::-1][3:], 0),
    ]:
        assert (view.device_address, view.offset, view.device) == (base + offset, offset, buffer.device)
        assert view.virtual_address - buffer.virtual_address == offset
    assert np.asarray(buffer[1:]).__array_interface__["data"][0] - buffer.virtual_address == 24


@given(st.lists(st.one_of(st.integers(1, 40 << 20), st.integers(-8, -1)), max_size=30))
def test_allocations_never_overlap(steps):
    memory, live = CardMemory(), {}
    for step in steps:
        if step > 0:
            try:
                handle, address = memory.allocate(0, step)
            except BttlabError:
                assert sum(-(-size // PAGE) * PAGE for _, size in live.values()) + step > BANK // 2
                continue
            assert address >= PAGE and address % PAGE == 0 and address + step <= BANK
            assert all(address + step <= begin or begin + size <= address for begin, size in live.values())
            live[handle] = address, step
        elif live:
            handle = sorted(live)[step % len(live)]
            address, _ = live.pop(handle)
            memory.release(handle)
            assert not memory.bytes_to_end(address)
    assert memory.usage(0) == (sum(-(-size // PAGE) * PAGE for _, size in live.values()), len(live))

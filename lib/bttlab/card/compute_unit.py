"""A kernel of the emulated card: its AXI-Lite registers, and the thread that runs it."""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from bttlab.card.hbm import CardMemory
from bttlab.card.image import NativeImage
from bttlab.card.kernel import CONTROL_RANGE, Kernel
from bttlab.estimate.facts import U50
from bttlab.util.errors import BttlabError

# Bits of the AP_CTRL register.
START, DONE, IDLE, READY, AUTO_RESTART = 0x01, 0x02, 0x04, 0x08, 0x80
POLL_SECONDS = 1e-2
OPEN, SERVE, CLOSE, FORGET = range(4)  # of a kernel's second thread (emulation/threads.h)
# For so long calls have no second thread after one in which it had no processor, since such a call loses milliseconds:
# twice as long each time, up to the most.
LEAST_SECONDS_ALONE, MOST_SECONDS_ALONE = 0.05, 1.6
STACK_BYTES = 64 << 20  # of a kernel's thread: local arrays, which are on-chip memory on the card, are on its stack

_stack_size = threading.Lock()
_libc, _libm = ctypes.CDLL(None), ctypes.CDLL("libm.so.6")
_DEFAULT_ENVIRONMENT = ctypes.c_void_p(-1)  # FE_DFL_ENV
_ENVIRONMENT_BYTES = 64  # at least the size of a fenv_t


class ComputeUnit:
    """A kernel of the loaded overlay: its AXI-Lite registers, and its function in the compiled image.

    `memory` is what its pointers refer to. `threads` are the host threads that execute it, 1 or 2; a call goes on with
    one if there is no processor for the second.
    """

    def __init__(self, kernel: Kernel, code: bytes, memory: CardMemory, thread_name: str, threads: int = 1) -> None:
        self.kernel = kernel
        self.threads = threads
        self._alone_until, self._seconds_alone = 0.0, LEAST_SECONDS_ALONE
        self._process = os.getpid()
        self._pool: ThreadPoolExecutor | None = None
        self._second_id, self._kept_from = 0, -1  # the second thread, and the first one's processor
        self._code = code
        self.clear()
        self._memory = memory
        self._thread_name = thread_name
        self._registers = bytearray(CONTROL_RANGE)
        self._writable = {
            offset + word
            for argument, offset in zip(kernel.arguments, kernel.offsets, strict=True)
            for word in range(0, argument.size, 4)
        }
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._finished.set()
        self._done = False
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """True from a start of the kernel until it has ended."""
        return not self._finished.is_set()

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes that its calls moved from HBM to the chip, and back, since it was loaded."""
        return self._image.moved(self.kernel)

    def clear(self) -> None:
        """Load the kernel again, which sets its on-chip memory to zero."""
        self._image = NativeImage(self._code)
        self._function = self._image.function(self.kernel)
        self._second = self._image.second_thread(self.kernel)

    def read(self, offset: int, length: int) -> bytes:
        """Read registers. Reading AP_CTRL clears its done and ready bits."""
        data = self._registers[offset : offset + length]
        if offset == 0:
            data[:4] = self._read_control().to_bytes(4, "little")[:length]
        return bytes(data)

    def write(self, offset: int, data: bytes, here: bool = False) -> None:
        """Write registers; the start bit in AP_CTRL starts the kernel, after the other registers are written.

        With `here` the kernel runs on the caller's thread, and this returns when it has ended. If the kernel is
        running, or an argument is invalid, a BttlabError is raised and the kernel is not started.
        """
        for begin in range(0, len(data), 4):
            if offset + begin in self._writable:
                self._registers[offset + begin : offset + begin + 4] = data[begin : begin + 4]
        control = int.from_bytes(data[:4], "little") if offset == 0 else 0
        if control & AUTO_RESTART:
            raise BttlabError(
                f"{self.kernel.instance}: the emulated card has no auto-restart; start the kernel every time"
            )
        if control & START:
            self._start(here)

    def _read_control(self) -> int:
        # PYNQ waits for a kernel by reading AP_CTRL in a busy loop. Waiting for the kernel's end here leaves the
        # processor and the GIL to other threads.
        self._finished.wait(POLL_SECONDS)
        with self._lock:
            if self.running:
                return START
            if self._thread is not None:
                self._thread.join()
                self._thread = None
            control = IDLE | (DONE | READY if self._done else 0)
            self._done = False
            return control

    def _start(self, here: bool) -> None:
        with self._lock:
            if self.running:
                raise BttlabError(f"{self.kernel.instance} is running: wait for it before you start it again")
            arguments = self._arguments()
            self._finished.clear()
            self._done = False
            if not here:
                self._start_thread(arguments)
        if here:
            self._run(arguments)

    def _start_thread(self, arguments: list[int | float]) -> None:
        thread = threading.Thread(target=self._run, args=(arguments,), name=self._thread_name)
        try:
            with _stack_size:
                previous = threading.stack_size(STACK_BYTES)
                try:
                    thread.start()
                finally:
                    threading.stack_size(previous)
        except RuntimeError as error:
            self._finished.set()
            raise BttlabError(f"{self.kernel.instance}: the host has no thread for it ({error})") from None
        self._thread = thread

    def _run(self, arguments: list[int | float]) -> None:
        before = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
        # A thread inherits the floating-point modes of the thread that starts it: torch.set_flush_denormal would change
        # the bits.
        _libm.fegetenv(before)
        try:
            _libm.fesetenv(_DEFAULT_ENVIRONMENT)
            with self._second_thread():
                self._function(*arguments)
        finally:
            _libm.fesetenv(before)
            self._done = True
            self._finished.set()

    @contextmanager
    def _second_thread(self) -> Iterator[None]:
        """Let a second host thread take part in a call of the kernel, if there is a processor for it."""
        second = self._second
        if second is None or self.threads < 2 or time.monotonic() < self._alone_until:
            yield
            return
        if self._process != os.getpid():  # forked: its parent's threads are not here
            self._process, self._pool = os.getpid(), None
            second(FORGET)
        served = None
        try:
            processor = _libc.sched_getcpu()
            others = os.sched_getaffinity(0) - {processor}
            if second(OPEN):  # it lingers after the call before
                if processor != self._kept_from:
                    self._keep_from(processor, others)
            else:
                served = self._second_pool().submit(self._serve, second, processor, others)
        except RuntimeError:  # the host has no thread for it, or the process ends
            second(CLOSE)
            self._pool = second = None
            self._go_alone()
        try:
            yield
        finally:
            if second is not None and second(CLOSE):
                self._seconds_alone = LEAST_SECONDS_ALONE
            elif second is not None:  # there was no processor for it
                self._go_alone()
            if served is not None:
                served.cancel()  # if it has not begun

    def _serve(self, second: Callable[[int], int], processor: int, others: set[int]) -> None:
        self._second_id = threading.get_native_id()
        self._keep_from(processor, others)
        second(SERVE)

    def _keep_from(self, processor: int, others: set[int]) -> None:
        """Let the second thread run on other processors than the first thread's."""
        with suppress(OSError):  # there is no other
            os.sched_setaffinity(self._second_id, others)
        self._kept_from = processor

    def _go_alone(self) -> None:
        """Execute the calls of the next while with one thread."""
        self._alone_until = time.monotonic() + self._seconds_alone
        self._seconds_alone = min(2 * self._seconds_alone, MOST_SECONDS_ALONE)

    def _second_pool(self) -> ThreadPoolExecutor:
        """Return the pool of the second thread, which waits there from call to call; it ends with this object."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, f"{self._thread_name}, second")
        return self._pool

    def _arguments(self) -> list[int | float]:
        """Return the arguments' values, pointers as addresses in this process; BttlabError if one is invalid."""
        values: list[Any] = [
            argument.decode(self._registers[offset : offset + argument.size])
            for argument, offset in zip(self.kernel.arguments, self.kernel.offsets, strict=True)
        ]
        reach = iter(self._image.reach(self.kernel, values))
        for i, argument in enumerate(self.kernel.arguments):
            if argument.bank is not None:  # a pointer
                fault = self._fault(values[i], argument.bank, argument.width // 8, next(reach))
                if fault:
                    where = f"argument {argument.name}, device address {values[i]:#x}"
                    raise BttlabError(f"{self.kernel.instance} not started: {where}, {fault}")
                values[i] = self._memory.host_address(values[i])
        return values

    def _fault(self, address: int, bank: int, alignment: int, reach: int) -> str | None:
        """Return why a device address is no valid argument for a call that accesses `reach` bytes from there."""
        available = self._memory.bytes_to_end(address)
        if not available:
            return "is in no buffer of this card; allocate one with pynq.allocate on this card"
        actual = address // U50.hbm_bank_bytes
        if actual != bank:
            return f"is in HBM[{actual}], but its port is connected to HBM[{bank}]; allocate the buffer there"
        if address % alignment:
            return f"is no multiple of {alignment}, the bytes of its port; start the buffer's view at one"
        if reach > available:
            return (
                f"has {available:,} bytes to the end of its buffer, but this call accesses {reach:,}; "
                "allocate a longer one"
            )
        return None

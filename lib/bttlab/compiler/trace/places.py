"""Where in a module an operation is: the layer's path and the user's line, for names and for messages."""

import sys
from collections.abc import Callable

from torch import nn

from bttlab.compiler.operation import SourceLine
from bttlab.compiler.trace.names import LIBRARIES, near
from bttlab.compiler.trace.values import Elements, Refusal, Refused


class Places:
    """Names what is recorded, and what is refused, by its place in a module that the method `run` calls."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module
        self.paths = {id(layer): name for name, layer in module.named_modules()}

    def name(self, what: str) -> str:
        """Return a name for an operation: what it computes, with its place."""
        return ".".join(filter(None, (self._place()[0], what)))

    def at_this_place(self, record: Callable[..., Elements]) -> Callable[..., Elements]:
        """Return a function that records later, with the present place in its refusals."""
        place = self._place()

        def later(*formula: Elements) -> Elements:
            try:
                return record(*formula)
            except Refusal as refusal:
                refusal.place = refusal.place or place
                raise

        return later

    def refused(self, refusal: Refusal) -> Refused:
        """Return the value of what is refused: the message with its place."""
        place, line = refusal.place or self._place()
        where, at = place or type(self.module).__name__, f" ({line})" if line else ""
        instead = refusal.near or near(refusal.what.split()[0], False)
        return Refused(f"{where}: {refusal.what} is not supported on the card; use {instead}{at}")

    def line(self) -> SourceLine | None:
        """Return the line of the user's file that runs, if there is one."""
        return self._place()[1]

    def _place(self) -> tuple[str, SourceLine | None]:
        """Return the path of the layer whose `forward` runs, and the line of the user's file, if there is one."""
        frame, path, line = sys._getframe(1), None, None
        while frame is not None and not self._is_run(frame) and (path is None or line is None):
            file = frame.f_code.co_filename
            if line is None and not file.startswith((*LIBRARIES, "<")) and file.endswith(".py"):
                line = SourceLine(file, frame.f_lineno)
            if path is None and frame.f_code.co_argcount:
                owner = frame.f_locals.get(frame.f_code.co_varnames[0])
                path = self.paths.get(id(owner)) if isinstance(owner, nn.Module) else None
            frame = frame.f_back
        return path or "", line

    def _is_run(self, frame) -> bool:
        return frame.f_code.co_name == "run" and frame.f_locals.get("self") is self

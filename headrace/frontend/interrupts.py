"""Ctrl-C between the steps of an engine: in the middle of one it would leave the engine's books half written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_interrupts(*, second_breaks_off: bool = True) -> Iterator[Callable[[], bool]]:
    """While inside, SIGINT breaks off nothing: the function that this gives says whether one came. A second one raises
    `KeyboardInterrupt` wherever it falls, for an engine that does not come back, unless `second_breaks_off` is false.

    Only in the main thread, which is the one that Python interrupts, and where nobody else handles the signal."""
    if threading.current_thread() is not threading.main_thread() or (
        signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield lambda: False
        return
    came = False

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal came
        if came and second_breaks_off:
            raise KeyboardInterrupt
        came = True

    signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)

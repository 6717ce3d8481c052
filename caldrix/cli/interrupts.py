"""Ctrl-C: what SIGINT means at each stage of a run.

At once (loading, and wherever nothing else is said): the process exits with 130; there is nothing
to clean up, and an exception out of the middle of an import or a destructor could be lost or
crash. Raising (a download, a line being typed): KeyboardInterrupt, so that files and the terminal
are put right. Stopping (an answer): the answer ends and the program goes on. A SIGINT that was
ignored when the program started stays ignored.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # exit status
PATIENCE_S = 1.0  # a second Ctrl-C later than this ends the program: the answer should have stopped

Handler = Callable[[int, FrameType | None], object]


def _exit(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


@contextmanager
def _handled_by(handler: Handler) -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def at_once() -> Iterator[None]:
    with _handled_by(_exit):
        yield


@contextmanager
def raising() -> Iterator[None]:
    with _handled_by(signal.default_int_handler):
        yield


class Stop:
    """Ctrl-C from a message to the end of its answer.

    While the prompt is made it raises KeyboardInterrupt; from `armed` on the first press calls
    `on_press`, once there is one.
    """

    def __init__(self) -> None:
        self.is_armed = False
        self.is_pressed = False
        self.on_press: Callable[[], object] | None = None
        self._pressed_at = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.is_armed or (self.is_pressed and now - self._pressed_at > PATIENCE_S):
            raise KeyboardInterrupt
        if not self.is_pressed:
            self.is_pressed, self._pressed_at = True, now
        if self.on_press is not None:
            self.on_press()


@contextmanager
def stopping() -> Iterator[Stop]:
    stop = Stop()
    with _handled_by(stop):
        yield stop

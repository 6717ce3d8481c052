"""Ctrl-C: what SIGINT means at each stage of a run, and where a kill has to wait a moment.

At once (loading, and wherever nothing else is said): the process exits with 130; there is nothing
to clean up, and an exception out of the middle of an import or a destructor could be lost or
crash. Raising (a download, a line being typed): KeyboardInterrupt, so that files and the terminal
are put right; so do SIGTERM and SIGHUP there, which end the program at once elsewhere. Stopping (an
answer): the answer ends and the program goes on. A server ends at once before it serves, in order
from then on. A signal that was ignored when the program started stays ignored.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import ClassVar

ENDINGS = (signal.SIGTERM, signal.SIGHUP)  # a kill, a terminal that is closed
INTERRUPTED = 130  # exit status
PATIENCE_S = 1.0  # a second Ctrl-C later than this ends the program: the answer should have stopped

Handler = Callable[[int, FrameType | None], object] | signal.Handlers


def _exit(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


def _raise_exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _handled_by(handler: Handler, *numbers: int) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in numbers}
    ours = [number for number in numbers if before[number] is not signal.SIG_IGN]
    try:
        for number in ours:
            signal.signal(number, handler)
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is handler:  # else the program is over
                signal.signal(number, before[number])


@contextmanager
def at_once() -> Iterator[None]:
    with _handled_by(_exit, signal.SIGINT):
        yield


@contextmanager
def raising() -> Iterator[None]:
    with (
        _handled_by(signal.default_int_handler, signal.SIGINT),
        _handled_by(_raise_exit, *ENDINGS),
    ):
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
    with _handled_by(stop, signal.SIGINT):
        yield stop


class ServerSignals:
    """SIGINT and SIGTERM for a server: at once the end of the process, with the status of each,
    until `tell` is set, which is then told the number."""

    STATUS: ClassVar[dict[int, int]] = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: 0}

    def __init__(self) -> None:
        self.tell: Callable[[int], object] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.tell is None:
            os._exit(self.STATUS[number])
        self.tell(number)


@contextmanager
def until_told() -> Iterator[ServerSignals]:
    """A terminal that closes is no reason for a server to end."""
    signals = ServerSignals()
    with _handled_by(signal.SIG_IGN, signal.SIGHUP), _handled_by(signals, *signals.STATUS):
        yield signals
        # It has ended with a status, which no further signal changes.
        for number in signals.STATUS:
            signal.signal(number, signal.SIG_IGN)

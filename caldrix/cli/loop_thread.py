"""An event loop on a thread of its own, for a program whose main thread has other work.

The main thread hands work in and waits for it. While it waits it runs the handlers of signals,
whichever thread the system gave a signal to. Knows nothing of what the work is.
"""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from caldrix.errors import EngineError

Value = TypeVar("Value")

_DONE = b"\0"  # no signal has this number


class LoopThread:
    """The loop runs from `with` to the end of its block, where what still runs in it is cancelled.
    Its methods are the main thread's."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        # A daemon, so that a program that ends in a hurry does not wait for it.
        self._thread = threading.Thread(target=self._main, name="caldrix-loop", daemon=True)

    def __enter__(self) -> Self:
        try:
            self._thread.start()
        except RuntimeError as error:
            self._loop.close()
            raise EngineError(f"cannot start a thread for the server: {error}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.call(self._stop.set)
        self._thread.join()  # cancelling is a matter of moments

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._stop.wait())

    def call(self, function: Callable[..., object], *values: object) -> None:
        """Has the loop call `function` soon."""
        self._loop.call_soon_threadsafe(function, *values)

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Runs `work` in the loop and waits for its result."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        woken, waker = socket.socketpair()
        with woken, waker:
            waker.setblocking(False)  # as set_wakeup_fd asks for
            before = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
            try:
                future.add_done_callback(lambda _: waker.send(_DONE))
                while _DONE not in woken.recv(4096):
                    pass  # handlers have run in between
            finally:
                signal.set_wakeup_fd(before)
        return future.result()

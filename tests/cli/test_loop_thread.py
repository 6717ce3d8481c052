"""A loop beside the main thread: results, the end of what is left, and signals while it waits."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from caldrix.cli.loop_thread import LoopThread
from caldrix.errors import EngineError


async def thread_id() -> int:
    return threading.get_ident()


async def failing() -> None:
    raise ValueError("no")


def test_work_runs_on_another_thread_and_its_result_comes_back() -> None:
    with LoopThread() as loop:
        assert loop.run(thread_id()) != threading.get_ident()
        with pytest.raises(ValueError, match="no"):
            loop.run(failing())
        assert loop.run(thread_id()) == loop.run(thread_id())


def test_what_still_runs_at_the_end_is_cancelled() -> None:
    ended: list[str] = []

    async def start() -> None:
        async def forever() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cleaned up")

        tasks.append(asyncio.create_task(forever()))
        await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    with LoopThread() as loop:
        loop.run(start())
        assert not ended
    assert ended == ["cleaned up"]


def test_a_thread_that_cannot_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(EngineError, match="a thread for the server: can't"), LoopThread():
        pass


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The signals of which the handler has heard."""
    found: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: found.append(number))
    yield found
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("is_to_process", [True, False])
def test_a_signal_is_heard_while_the_main_thread_waits(
    heard: list[int], is_to_process: bool
) -> None:
    """Also one that the system gives to the loop's thread, which runs no handlers."""

    async def until_heard() -> None:
        async with asyncio.timeout(30):
            await asyncio.sleep(0.02)  # by now the main thread waits
            if is_to_process:
                os.kill(os.getpid(), signal.SIGUSR1)
            else:
                signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            while not heard:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    with LoopThread() as loop:
        loop.run(until_heard())
    assert heard == [signal.SIGUSR1]
    assert signal.set_wakeup_fd(-1) == -1

"""A server that nobody asks anything uses no processor: no timer, no polling, no spinning."""

import time
from pathlib import Path

import pytest
from server_process import ServerProcess, wait_until

pytestmark = pytest.mark.slow

WINDOW_S = 4.0
LIMIT_S = (
    0.1  # measured: 0; one thread that spins would take all of the window, a timer of 1 ms 0.2
)


def used(server: ServerProcess) -> float:
    """Seconds of processor time that all its threads take while nothing happens."""
    before = server.cpu_s()
    time.sleep(WINDOW_S)  # what is measured is that nothing happens
    return server.cpu_s() - before


def test_an_idle_server_uses_no_processor(abc: Path) -> None:
    flags = ("--threads", "2", "--parallel", "4", "--request-timeout", "600", "--access-log", "on")
    with ServerProcess(abc, *flags) as server:
        assert used(server) < LIMIT_S, "after the load"
        for _ in range(3):
            server.ask(server.body(20))
            server.opened(20, 2000)
        wait_until(server.is_idle)
        assert used(server) < LIMIT_S, "after requests, with connections that are open"
        server.leave()
        cancelled = server.opened(10**3)
        cancelled.close()
        wait_until(server.is_idle)
        assert used(server) < LIMIT_S, "after one that left"
        server.stops()

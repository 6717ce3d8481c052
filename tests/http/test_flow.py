"""Back-pressure against a transport whose buffer the test moves."""

import asyncio
from typing import cast

import pytest
from serving import run, until

from caldrix.http.flow import FlowControl, PeerStalled


class Transport:
    """Only the size of a write buffer."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def set_write_buffer_limits(self, high: int, low: int = 0) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self.sizes.pop(0)


def flow_over(sizes: list[int], stalled_s: float) -> FlowControl:
    return FlowControl(cast(asyncio.Transport, Transport(sizes)), stalled_s)


def test_writing_is_welcome_until_the_buffer_is_full() -> None:
    async def test() -> None:
        flow = flow_over([], 1)
        await flow.drain()
        assert not flow.is_paused
        flow.pause()
        assert flow.is_paused
        flow.resume()
        await flow.drain()

    run(test())


def test_a_reader_that_takes_nothing_is_given_up() -> None:
    async def test() -> None:
        flow = flow_over([100, 100], 0.01)
        flow.pause()
        with pytest.raises(PeerStalled):
            await flow.drain()

    run(test())


def test_a_reader_that_takes_something_is_waited_for() -> None:
    async def test() -> None:
        transport_sizes = [100, 99, 99, 98, 98]
        flow = flow_over(transport_sizes, 0.01)
        flow.pause()
        draining = asyncio.create_task(flow.drain())
        await until(lambda: not transport_sizes)
        flow.resume()
        await draining

    run(test())


def test_flush_waits_for_the_last_byte() -> None:
    async def test() -> None:
        flow = flow_over([100], 1)
        flow.pause()
        flushing = asyncio.create_task(flow.flush())
        await asyncio.sleep(0)
        assert cast(Transport, flow._transport).high == 0
        assert not flushing.done()
        flow.resume()
        await flushing

    run(test())


def test_the_time_of_waiting_adds_up() -> None:
    async def test() -> None:
        flow = flow_over([100] * 100, 0.01)
        await flow.drain()
        assert flow.waited_s == 0
        flow.pause()
        with pytest.raises(PeerStalled):
            await flow.drain()
        waited_s = flow.waited_s
        assert waited_s >= 0.01
        draining = asyncio.create_task(flow.drain())
        await asyncio.sleep(0)
        draining.cancel()  # the peer left
        with pytest.raises(asyncio.CancelledError):
            await draining
        assert flow.waited_s > waited_s

    run(test())

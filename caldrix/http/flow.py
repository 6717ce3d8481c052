"""Write back-pressure: whoever writes awaits here until the peer has taken enough.

Owns the two marks of the write buffer and the rule for a reader that takes nothing; knows nothing
of what is written.
"""

import asyncio
import time

# Two marks of the transport's own buffer: writing waits above the first until it is below the
# second. Small, since the kernel holds more and every connection may fill its own.
HIGH_BYTES = 32 * 1024
LOW_BYTES = 8 * 1024


class PeerStalled(ConnectionError):
    """The peer has taken no byte for too long."""


class FlowControl:
    """One connection's flag: may write, or wait."""

    def __init__(self, transport: asyncio.Transport, stalled_s: float) -> None:
        self._transport = transport
        self._stalled_s = stalled_s
        self.waited_s = 0.0  # in all, for this peer to take what was written
        self._writable = asyncio.Event()
        self._writable.set()
        transport.set_write_buffer_limits(high=HIGH_BYTES, low=LOW_BYTES)

    @property
    def is_paused(self) -> bool:
        return not self._writable.is_set()

    def pause(self) -> None:
        self._writable.clear()

    def resume(self) -> None:
        """Also called when the connection is lost: nobody waits for a peer that is gone."""
        self._writable.set()

    async def drain(self) -> None:
        """Waits until writing is welcome; raises PeerStalled when nothing was taken for long."""
        if not self.is_paused:
            return
        started = time.monotonic()
        try:
            await self._writable_again()
        finally:
            self.waited_s += time.monotonic() - started

    async def _writable_again(self) -> None:
        while self.is_paused:
            size = self._transport.get_write_buffer_size()
            try:
                async with asyncio.timeout(self._stalled_s):
                    await self._writable.wait()
            except TimeoutError:
                if self._transport.get_write_buffer_size() >= size:
                    raise PeerStalled(f"no byte taken for {self._stalled_s:g} s") from None

    async def flush(self) -> None:
        """Waits until the kernel has everything; for the last write of a connection."""
        self._transport.set_write_buffer_limits(high=0)
        await self.drain()

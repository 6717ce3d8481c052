"""How far a download or another long job is: a line redrawn in place on a terminal, nothing
anywhere else.

Knows bytes and seconds; the drawing itself is `log.redraw`.
"""

import time

from caldrix.log import redraw
from caldrix.units import format_size

REDRAW_SECONDS = 0.1


class Progress:
    """One job over `total_bytes` (None: not known). Erase it before a status line is written."""

    def __init__(self, label: str, total_bytes: int | None) -> None:
        self._label = label
        self._total_bytes = total_bytes
        self._started = self._redrawn = time.monotonic()
        self._is_drawn = False

    def update(self, n_bytes: int) -> None:
        """Shows that `n_bytes` are done, at most ten times a second."""
        now = time.monotonic()
        if now - self._redrawn < REDRAW_SECONDS:
            return
        self._redrawn, self._is_drawn = now, True
        amount = format_size(n_bytes)
        if self._total_bytes:
            n_bytes = min(n_bytes, self._total_bytes)
            amount = f"{100 * n_bytes // self._total_bytes} % of {format_size(self._total_bytes)}"
        speed = format_size(int(n_bytes / max(now - self._started, 0.001)))
        redraw(f"caldrix: {self._label}  {amount}, {speed}/s")

    def erase(self) -> None:
        """Leaves a clean line."""
        if self._is_drawn:
            redraw("")
        self._is_drawn = False

"""Sizes and durations for people: parse what a flag takes, print what a status line shows.

Decimal units throughout (1 MB is 1,000,000 bytes), as disks and model hubs count.
"""

import re

_SIZE = re.compile(r"(\d+)([kmgt]?)b?", re.IGNORECASE)
_FACTOR = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def parse_size(text: str) -> int:
    """Bytes of `5g`, `4500m` or a plain count. Raises ValueError for anything else."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"not a size: {text!r}; write 5g, 4500m or a byte count")
    return int(match[1]) * _FACTOR[match[2].lower()]


def format_size(n_bytes: int) -> str:
    """`92.9 MB`: three significant digits or so, decimal units."""
    value, unit = float(n_bytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.95 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def format_seconds(seconds: float) -> str:
    """`0.42 s`, `12.3 s` or `3 min 20 s`."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"

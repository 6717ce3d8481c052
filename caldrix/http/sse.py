"""Server-sent events: framing of one event, comments as heartbeats, the headers of a stream.

Owns the text format; knows nothing of connections or of what an event says. Lines end with LF and
every event with an empty line.
"""

# No proxy may cache or hold back what is sent (the last is nginx's own switch).
HEADERS = (
    ("Content-Type", "text/event-stream; charset=utf-8"),
    ("Cache-Control", "no-cache"),
    ("X-Accel-Buffering", "no"),
)

DONE = b"data: [DONE]\n\n"


def event(data: str | bytes, name: str | None = None) -> bytes:
    """One event; every line of `data` becomes a data line, so that none can end it early."""
    raw = data.encode() if isinstance(data, str) else data
    raw = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    head = b"" if name is None else b"event: %b\n" % name.encode()
    return b"%bdata: %b\n\n" % (head, raw.replace(b"\n", b"\ndata: "))


def comment(text: str = "ping") -> bytes:
    """A line that every client skips: it keeps proxies from closing a stream that is silent."""
    return b": %b\n\n" % " ".join(text.split()).encode()

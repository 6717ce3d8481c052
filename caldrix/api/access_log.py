"""The access log: one line for each exchange, of what is no secret.

Owns the line's form: method, path, status, bytes sent, seconds, request id. A query, a body or a
header's value is never in it, but for the request id. No field holds a space or a control
character, so that nobody can forge a line or a field: the HTTP layer lets neither into a path.
"""

from caldrix.http.messages import Exchange

MAX_PATH = 256  # characters
_NONE = "-"


def access_line(exchange: Exchange) -> str:
    """`GET /v1/models 200 312 0.001 req-9f86d081-7`; `-` for what could not be read or was never
    given."""
    method = path = _NONE
    if exchange.head is not None:
        method, path = exchange.head.method, exchange.head.path
    if len(path) > MAX_PATH:
        path = f"{path[:MAX_PATH]}..."
    request_id = next((v for name, v in exchange.headers if name == "x-request-id"), _NONE)
    sent, seconds = exchange.bytes_out, exchange.seconds
    return f"{method} {path} {exchange.status} {sent} {seconds:.3f} {request_id}"

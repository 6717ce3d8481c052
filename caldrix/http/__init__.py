"""HTTP/1.1 and server-sent events over asyncio: a protocol without I/O and the server around it.

Knows nothing of models or of the meaning of a path: an Application decides both. Start reading at
protocol.py (bytes to requests), then connection.py (the life of a connection).
"""

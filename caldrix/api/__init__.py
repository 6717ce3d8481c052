"""The HTTP API: OpenAI shapes over the engine, the table of routes, metrics and records.

Knows requests and replies as records of the http layer, never sockets; knows models and engines,
never files or downloads.
"""

"""`caldrix serve MODEL`: from a checked command line to a server that runs until a signal.

Owns the order (flags, port, load, the serving line), the signals and the exit status. Two threads:
the event loop answers from the moment the port is taken, at first that the model is loading; the
main thread loads and then waits, since it alone hears signals and can be interrupted in a download.
Ctrl-C gives running replies a short grace and exits 130; SIGTERM drains and exits 0; a second
signal cuts what still runs. Until the model is ready both end the process at once. An engine that
cannot go on ends the server with 1. Nothing is written to stdout.
"""

import asyncio
import gc
import ipaddress
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from caldrix import log
from caldrix.cli.interrupts import INTERRUPTED, ServerSignals, until_told
from caldrix.cli.loop_thread import LoopThread
from caldrix.cli.parse import CommandLine, parse

if TYPE_CHECKING:
    from caldrix.api.service import Settings
    from caldrix.api.serving import Front, Server
    from caldrix.engine.line_log import LineLog
    from caldrix.engine.load import LoadedModel

INTERRUPT_GRACE_S = 5.0
FAILED_GRACE_S = 1.0  # for the news to reach the clients


def main(arguments: Sequence[str]) -> int:
    from caldrix.cli import rules
    from caldrix.cli.stderr import steady_stderr
    from caldrix.http.server import open_listeners
    from caldrix.hub.resolve import parse_model

    with until_told() as signals:
        line = parse("serve", arguments)
        lane = rules.check(line)
        name = parse_model(line.model).served_name  # refused before the address is taken
        with opened_log(line["telemetry_log"]) as log_file, steady_stderr():
            given = settings(line, log_file)  # reads the file of keys
            # Before anything slow: a taken port is refused at once.
            listeners = open_listeners(line["host"], line["port"])
            try:
                return listen(line, lane, name, listeners, given, signals)
            except SystemExit:  # SIGTERM during a download, with the files put right
                return 0


@contextmanager
def opened_log(path: str | None) -> Iterator["LineLog | None"]:
    """--telemetry-log, refused before a download where it cannot be written."""
    if path is None:
        yield None
        return
    from caldrix.engine.line_log import LineLog

    file = LineLog(path, "--telemetry-log")
    try:
        yield file
    finally:
        file.close()


def listen(
    line: CommandLine,
    lane: str,
    name: str,
    listeners: list[socket.socket],
    given: "Settings",
    signals: ServerSignals,
) -> int:
    """Answers from now on and loads meanwhile."""
    from caldrix.api.serving import Front
    from caldrix.cli import prepare

    front = Front(line["served_name"] or name, line["host"], line["port"], given)
    with LoopThread() as loop:
        loop.run(front.start(listeners))
        try:
            model = prepare.load(line, lane)
        except Exception:
            loop.run(front.close(FAILED_GRACE_S))
            raise
        # What is loaded stays: a full collection that went through it would stall every reply.
        gc.collect()
        gc.freeze()
        stopping: asyncio.Queue[int] = asyncio.Queue()
        signals.tell = lambda number: loop.call(stopping.put_nowait, number)
        try:
            return loop.run(serve(line, model, front, given, stopping))
        finally:
            signals.tell = lambda number: None  # it has ended
            model.program.close()


async def serve(
    line: CommandLine,
    model: "LoadedModel",
    front: "Front",
    given: "Settings",
    stopping: asyncio.Queue[int],
) -> int:
    from caldrix.api.serving import Server

    server = Server(model, settings=given, front=front)
    await server.start()
    warn_if_open(line["host"], bool(given.access.keys))
    log.status(f"serving {model.name} on {server.url}")
    return await run(server, stopping, line["drain_timeout"])


async def run(server: "Server", stopping: asyncio.Queue[int], drain_s: float) -> int:
    """Until `stopping` brings a signal, or the engine cannot go on; returns the exit status."""
    signalled = asyncio.create_task(stopping.get())
    failed = asyncio.create_task(server.failed())
    await asyncio.wait([signalled, failed], return_when=asyncio.FIRST_COMPLETED)
    if not signalled.done():
        signalled.cancel()
        log.status(f"the server ends: {failed.result()}")
        await server.close(FAILED_GRACE_S)
        return 1
    failed.cancel()
    number = signalled.result()
    grace = INTERRUPT_GRACE_S if number == signal.SIGINT else drain_s
    closing = asyncio.create_task(server.close(grace))
    second = asyncio.create_task(stopping.get())
    await asyncio.wait([closing, second], return_when=asyncio.FIRST_COMPLETED)
    second.cancel()
    if not closing.done():
        await server.close(0.0)
        await closing
    return INTERRUPTED if number == signal.SIGINT else 0


def settings(line: CommandLine, log_file: "LineLog | None" = None) -> "Settings":
    from caldrix.api.access import Access
    from caldrix.api.service import Settings
    from caldrix.cli.keys import server_keys
    from caldrix.cli.sampling import sampling_params, sampling_values
    from caldrix.engine.telemetry import Level, Telemetry

    return Settings(
        sampling=sampling_params(sampling_values(line)),
        queue_depth=line["queue_depth"],
        ping_interval_s=line["sse_ping_interval"],
        deadline_s=line["request_timeout"] or None,
        prefix_cache=line["prefix_cache"] == "on",
        reasoning_format=line["reasoning_format"],
        access=Access(line["cors_origins"], server_keys(line), line["allowed_hosts"]),
        admission=line["admission"],
        telemetry=Telemetry(
            Level(line["telemetry"]), line["device_sample_period"], line["device_sample_offset"]
        ),
        telemetry_log=None if log_file is None else log_file.write,
        access_log=log.status if line["access_log"] == "on" else None,
    )


def warn_if_open(host: str, has_keys: bool) -> None:
    """An address other than loopback is the network's."""
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    if not is_local:
        lacks = (
            "no TLS, so keys travel in the clear" if has_keys else "no authentication and no TLS"
        )
        log.status(
            f"warning: --host {host} opens the server to that network: there is {lacks}; "
            "put a reverse proxy in front"
        )

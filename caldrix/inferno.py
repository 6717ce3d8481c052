"""Inferno, the engine under caldrix, for programs that embed it: the one public module.

It loads files that are already on this machine and serves them over HTTP; fetching models is
caldrix's. Nothing here keeps global state: several models and engines may live in one process.

    model = inferno.load_model(Path("model.gguf"), inferno.LoadOptions(), print)
    engine = inferno.Engine(model.program)
    await engine.start()
    ids = tuple(model.chat_template.encode(model.tokenizer, [{"role": "user", "content": "Hi"}]))
    request = inferno.Request(ids, max_tokens=32, stop_token_ids=model.eos_token_ids)
    async with inferno.stream_text(engine, model.tokenizer, request) as stream:
        async for piece in stream:
            print(piece, end="", flush=True)
    await engine.close()
    model.program.close()

`serve` puts the HTTP API of `caldrix serve` in front of a model:

    async with inferno.serve(model, port=8425) as server:
        print(server.url)
        await asyncio.Event().wait()
"""

from caldrix.api.access import Access
from caldrix.api.service import Settings
from caldrix.api.serving import Server
from caldrix.engine.engine import Engine
from caldrix.engine.generate import Result, TextPiece, TextStream, stream_all, stream_text
from caldrix.engine.generation import Generation
from caldrix.engine.load import LoadedModel, LoadOptions, load_model
from caldrix.engine.records import ReplyRecord
from caldrix.engine.sequence import CancelReason, FinishReason, Request, SamplingParams
from caldrix.engine.snapshot import Snapshot
from caldrix.engine.telemetry import Level, Telemetry
from caldrix.engine.threads import default_threads
from caldrix.errors import CaldrixError
from caldrix.native import TokenLogprob

__all__ = [
    "Access",
    "CaldrixError",
    "CancelReason",
    "Engine",
    "FinishReason",
    "Generation",
    "Level",
    "LoadOptions",
    "LoadedModel",
    "ReplyRecord",
    "Request",
    "Result",
    "SamplingParams",
    "Server",
    "Settings",
    "Snapshot",
    "Telemetry",
    "TextPiece",
    "TextStream",
    "TokenLogprob",
    "default_threads",
    "load_model",
    "serve",
    "stream_all",
    "stream_text",
]


def serve(
    model: LoadedModel,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    settings: Settings | None = None,
    engine: Engine | None = None,
) -> Server:
    """The HTTP API over `model`, listening inside `async with`; port 0 takes a free one.

    `engine` is one of the model's that the caller has started and closes; without it the server
    has its own. The model stays open. Raises RefusedError when the address is taken.
    """
    return Server(model, host=host, port=port, settings=settings, engine=engine)

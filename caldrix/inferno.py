"""Inferno, the engine under caldrix, for programs that embed it: the one public module.

It loads files that are already on this machine; fetching models and speaking HTTP are caldrix's.
Nothing here keeps global state: several models and engines may live in one process.

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
"""

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
    "Snapshot",
    "Telemetry",
    "TextPiece",
    "TextStream",
    "TokenLogprob",
    "default_threads",
    "load_model",
    "stream_all",
    "stream_text",
]

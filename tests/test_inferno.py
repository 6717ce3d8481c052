"""The embedding interface: the example of its docstring, on a model whose reply is known."""

import asyncio
from pathlib import Path

from known_reply import write_model

from caldrix import inferno


async def answer(path: Path, message: str, n_at_once: int) -> list[str]:
    said: list[str] = []
    options = inferno.LoadOptions(max_context=256, threads=1, n_slots=n_at_once)
    model = inferno.load_model(path, options, said.append)
    assert len(said) == 1
    assert model.chat_template is not None
    engine = inferno.Engine(model.program)
    await engine.start()
    ids = model.chat_template.encode(model.tokenizer, [{"role": "user", "content": message}])

    async def one(max_tokens: int) -> str:
        request = inferno.Request(
            tuple(ids), max_tokens=max_tokens, stop_token_ids=model.eos_token_ids
        )
        async with inferno.stream_text(engine, model.tokenizer, request) as stream:
            text = "".join([piece async for piece in stream])
            assert stream.result.text == text
            return text

    texts = await asyncio.gather(*(one(n + 1) for n in range(n_at_once)))
    await engine.close()
    model.program.close()
    return texts


def test_an_application_can_load_and_stream(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", "The quick!")
    assert asyncio.run(answer(path, "hi", 12)) == ["The quick!"[: n + 1] for n in range(12)]


def test_every_name_it_promises_is_there() -> None:
    for name in inferno.__all__:
        assert getattr(inferno, name) is not None

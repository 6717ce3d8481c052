"""The examples of docs/api.md and docs/serve.md, run as they stand."""

import asyncio
import json
import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from known_reply import write_model
from served import Answer, Served, serving

DOCS = Path(__file__).resolve().parents[2] / "docs"


def exchanges() -> list[tuple[str, str]]:
    """(command, what the page shows below it), in order."""
    found: list[tuple[str, str]] = []
    for line in (DOCS / "api.md").read_text(encoding="utf8").splitlines():
        if line.startswith("    curl "):
            found.append((line.strip(), ""))
        elif line.startswith("    ") and found:
            command, shown = found[-1]
            found[-1] = (command, f"{shown}\n{line.strip()}".strip())
    return found


def run(served: Served, command: str) -> Answer:
    _, url, *rest = shlex.split(command)
    body = rest[rest.index("-d") + 1].encode() if "-d" in rest else None
    return served.ask("POST" if body else "GET", urlsplit(url).path, body)


def undated(text: str) -> str:
    return re.sub(r'"created":\d+', '"created":0', text)


def test_the_page_of_the_api_shows_what_the_server_answers(tmp_path: Path) -> None:
    assert len(exchanges()) > 8
    with serving(write_model(tmp_path / "demo", "The quick!"), context=2048) as served:
        for command, shown in exchanges():
            body = run(served, command).body.decode()
            lines = [line for line in body.splitlines() if line]
            assert undated("\n".join(lines)) == undated(shown), command


def test_every_error_code_of_the_page_is_one_of_ours() -> None:
    source = "".join(p.read_text() for p in (DOCS.parent / "caldrix" / "api").glob("*.py"))
    page = (DOCS / "api.md").read_text(encoding="utf8").partition("## Errors")[2]
    codes = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", page)) - {"n_prompt_tokens", "n_ctx", "min_p"}
    assert len(codes) > 20
    for code in codes:
        assert f'"{code}"' in source, code


def test_the_embedding_example_serves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (DOCS / "serve.md").read_text(encoding="utf8")
    block = page[page.index("    import asyncio\n") :]
    code = re.sub(r"^    ", "", block, flags=re.MULTILINE)
    names: dict[str, object] = {}
    exec(compile(code, "serve.md", "exec"), names)

    async def use() -> bytes:
        until = asyncio.Event()
        path = write_model(tmp_path / "demo", "The quick!")
        running = asyncio.create_task(names["main"](path, until))  # type: ignore[operator]
        while "http://" not in (said := capsys.readouterr().out):  # noqa: ASYNC110  (it prints)
            await asyncio.sleep(0)
        parts = urlsplit(said.split()[-1])
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(b"GET /v1/models HTTP/1.0\r\n\r\n")
        answer = await reader.read()
        writer.close()
        until.set()
        await running
        return answer

    body = asyncio.run(use()).partition(b"\r\n\r\n")[2]
    assert json.loads(body)["data"][0]["id"] == "demo"

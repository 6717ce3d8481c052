"""Downloads from a fake hub: what is fetched, what is refused, what survives a bad network."""

import errno
import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub
import pytest
from fake_hub import Asked, FakeHub, Handler, commit_of
from huggingface_hub import constants

from caldrix import storage
from caldrix.errors import BusyError, CaldrixError, RefusedError, TooLargeError
from caldrix.hub import hub_cache, huggingface
from caldrix.hub.huggingface import fetch_repository

REPO = "own/model"
COMMIT = commit_of(REPO)
TOKEN = "hf_SecretOfTheTests"
WEIGHTS = bytes(range(256)) * 12000  # 3 MB: three chunks of the client
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b'{"version": "1.0"}',
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": WEIGHTS,
}
UNNEEDED = {"README.md": b"# hi", "pytorch_model.bin": b"x", "original/model.safetensors": b"y"}


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def hub(own_caches: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    # The library reads these once, at its import, from the environment of whoever runs the tests.
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(own_caches / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    with FakeHub({REPO: FILES | UNNEEDED}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def refusal(lines: list[str], repo: str = REPO, revision: str = "main") -> CaldrixError:
    with pytest.raises(CaldrixError) as caught:
        fetch_repository(repo, revision, lines.append)
    for text in [str(caught.value), *lines]:
        assert text.isprintable()
        assert TOKEN not in text
    assert caught.value.exit_status == 1
    return caught.value


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def fill_cache(files: dict[str, bytes], *, links: bool = True) -> Path:
    """A cache as another program leaves it; returns the snapshot."""
    base = hub_cache.snapshot_directory(REPO, COMMIT).parent.parent
    for folder in ("refs", "blobs", f"snapshots/{COMMIT}"):
        (base / folder).mkdir(parents=True, exist_ok=True)
    (base / "refs" / "main").write_text(COMMIT)
    for name, data in files.items():
        path = base / "snapshots" / COMMIT / name
        if links:
            blob = base / "blobs" / hashlib.sha256(data).hexdigest()
            blob.write_bytes(data)
            path.symlink_to(Path("..", "..", "blobs", blob.name))
        else:
            path.write_bytes(data)
    return base / "snapshots" / COMMIT


# ---------------------------------------------------------------- the plain case
def test_only_the_needed_files_are_fetched(hub: FakeHub, lines: list[str]) -> None:
    path = fetch_repository(REPO, "main", lines.append)
    assert contents(path) == FILES
    assert path.name == COMMIT
    assert len(lines) == 1
    for word in (REPO, COMMIT, "model.safetensors 3.1 MB", "config.json 23 B"):
        assert word in lines[0]


def test_what_is_here_is_not_asked_for_again(
    hub: FakeHub, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fetch_repository(REPO, "main", lines.append)
    hub.asked.clear()
    monkeypatch.setattr(huggingface, "_library", None)  # importing it takes longer than a start
    for revision in ("main", COMMIT):
        assert fetch_repository(REPO, revision, lines.append) == first
    assert not hub.asked
    assert lines[1:] == [f"{REPO} is already in the Hugging Face cache, revision {COMMIT}"] * 2


def test_a_config_that_is_refused_costs_no_weights(hub: FakeHub, lines: list[str]) -> None:
    judged: list[bytes] = []

    def judge(config: Path) -> None:
        judged.append(config.read_bytes())
        raise RefusedError("config.json: not this one")

    with pytest.raises(RefusedError, match="not this one"):
        fetch_repository(REPO, "main", lines.append, judge)
    assert judged == [FILES["config.json"]]
    assert hub.gets("config.json")
    assert not hub.gets(".safetensors")
    fetch_repository(REPO, "main", lines.append, lambda config: judged.append(b"taken"))
    assert judged[-1] == b"taken"
    assert hub.gets(".safetensors")


def test_a_revision_may_be_a_commit_or_a_ref(hub: FakeHub, lines: list[str]) -> None:
    assert fetch_repository(REPO, COMMIT, lines.append).name == COMMIT
    assert fetch_repository(REPO, "refs/pr/1", lines.append).name == COMMIT
    refs = hub_cache.snapshot_directory(REPO, COMMIT).parent.parent / "refs"
    assert (refs / "refs" / "pr" / "1").read_text() == COMMIT
    assert len(hub.gets("model.safetensors")) == 1


def test_the_library_is_silent(
    hub: FakeHub, lines: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    hub.behaviour.cuts = 1
    fetch_repository(REPO, "main", lines.append)
    assert capfd.readouterr() == ("", "")


# ---------------------------------------------------------------- which files make a model
def test_shards_come_with_their_index(hub: FakeHub, lines: list[str]) -> None:
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    index = json.dumps({"weight_map": {"a": shards[0], "b": shards[1]}}).encode()
    files = {k: v for k, v in FILES.items() if k != "model.safetensors"}
    files |= {"model.safetensors.index.json": index, shards[0]: b"one", shards[1]: b"two"}
    hub.repos[REPO] = files | {"consolidated.safetensors": b"no"}
    assert contents(fetch_repository(REPO, "main", lines.append)) == files
    del hub.repos[REPO][shards[1]]
    os.remove(hub_cache.snapshot_directory(REPO, COMMIT) / shards[1])
    assert str(refusal(lines)).startswith(f"{REPO} at revision {COMMIT} has no {shards[1]}")


GGUF_REPOS = [
    ({"a.Q4_0.gguf": b"1", "README.md": b""}, "a.Q4_0.gguf"),
    ({"a.gguf": b"1", "mmproj-a.gguf": b"2"}, "a.gguf"),
    (
        {"q/a-00001-of-00002.gguf": b"1", "q/a-00002-of-00002.gguf": b"2"},
        "q/a-00001-of-00002.gguf",
    ),
    ({"a.gguf": b"1", "b.gguf": b"2"}, "holds 2 .gguf models: a.gguf, b.gguf;"),
    ({"a-00001-of-00002.gguf": b"1"}, "no 'a-00002-of-00002.gguf'"),
    ({"pytorch_model.bin": b"1"}, "of pytorch_model.bin none can be read"),
    ({"README.md": b"1"}, "is not a model repo"),
    ({"model.safetensors": b"1"}, "holds no config.json"),
    ({}, "is not a model repo"),
]


@pytest.mark.parametrize(("files", "outcome"), GGUF_REPOS)
def test_a_repo_of_gguf_files_holds_one_model_or_is_refused(
    hub: FakeHub, lines: list[str], files: dict[str, bytes], outcome: str
) -> None:
    hub.repos[REPO] = files
    if outcome.endswith(".gguf"):
        path = fetch_repository(REPO, "main", lines.append)
        assert str(path).endswith(f"{COMMIT}/{outcome}")
        hub.asked.clear()
        assert fetch_repository(REPO, "main", lines.append) == path
        assert not hub.asked
    else:
        assert outcome in str(refusal(lines))
        assert not [a for a in hub.asked if "/resolve/" in a.path]


def test_a_listing_with_hostile_names_leads_nowhere(
    hub: FakeHub, lines: list[str], own_caches: Path
) -> None:
    names = [
        "../x.gguf",
        "/tmp/x.gguf",
        "a/../../x.gguf",
        "a\\x.gguf",
        "./x.gguf",
        "a\n.gguf",
        "..",
    ]
    hub.repos[REPO] = dict.fromkeys(names, b"x")
    assert "is not a model repo" in str(refusal(lines))
    assert not list(own_caches.rglob("x.gguf"))


# ---------------------------------------------------------------- refusals of the hub
def always(status: int, head: dict[str, str] | None = None) -> Callable[[Handler, str, str], bool]:
    return lambda handler, *_: handler.answer(status, b'{"error": "no"}', head)


REFUSALS = [
    (401, {"X-Error-Message": "Invalid credentials"}, "it needs a token: set HF_TOKEN"),
    (401, {"X-Error-Code": "RepoNotFound"}, "no such repo, or it needs a token"),
    (401, {"X-Error-Code": "GatedRepo"}, "access is restricted (gated"),
    (403, {"X-Error-Code": "GatedRepo"}, "access is restricted (gated"),
    (403, {}, "access is restricted"),
    (404, {"X-Error-Code": "RepoNotFound"}, "no such repo"),
    (404, {"X-Error-Code": "RevisionNotFound"}, "has no revision 'main'"),
    (404, {}, "no such repo"),
    (429, {"Retry-After": "7"}, "(429); try again after 7 s"),
    (429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, "(429); try again later"),
    (500, {}, "fails with 500; try again later"),
    (503, {}, "fails with 503; try again later"),
    (418, {}, "answers 418"),
]


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize(("status", "head", "words"), REFUSALS)
def test_a_refusal_says_which(
    hub: FakeHub, lines: list[str], monkeypatch: pytest.MonkeyPatch,
    status: int, head: dict[str, str], words: str, token: str | None,
) -> None:  # fmt: skip
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
        words = words.replace("it needs a token: set HF_TOKEN", "the token in use is not accepted")
        words = words.replace("it needs a token", "the token in use")
    hub.behaviour.fault = always(status, head)
    error = refusal(lines)
    assert words in str(error)
    assert REPO in str(error)
    assert [asked.token for asked in hub.asked] == [token]


@pytest.mark.parametrize(
    "body",
    [b"<html>log in</html>", b"[]", b"{}", b"null", b'{"sha": "../x", "siblings": []}', b"\xff"],
)
def test_a_page_that_is_no_hub_is_refused(hub: FakeHub, lines: list[str], body: bytes) -> None:
    hub.behaviour.fault = lambda handler, *_: handler.answer(200, body, kind="text/html")
    assert f"what answers at 127.0.0.1:{hub.port} is not a model hub" in str(refusal(lines))


def test_a_token_opens_a_private_repo(
    hub: FakeHub, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.behaviour.token = TOKEN
    assert "needs a token" in str(refusal(lines))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert contents(fetch_repository(REPO, "main", lines.append)) == FILES


@pytest.mark.parametrize("token", ["has\nnewline", "has\x00zero", "ünïcode", "x" * 100_000])
def test_a_token_that_cannot_be_sent_is_not_printed(
    hub: FakeHub, lines: list[str], monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: token)
    monkeypatch.setattr("huggingface_hub.utils._headers.get_token", lambda: token)
    hub.behaviour.token = TOKEN
    assert token not in str(refusal(lines))


def test_no_network(lines: list[str], monkeypatch: pytest.MonkeyPatch, waits: list[float]) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://user:secret@127.0.0.1:9")
    error = str(refusal(lines))
    assert error == f"{REPO}: the hub at 127.0.0.1:9 cannot be reached"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "cannot be fetched: HF_HUB_OFFLINE is set" in str(refusal(lines))


@pytest.mark.parametrize("address", ["nonsense", "ftp://host", "http://[::1", "http://host:port"])
def test_an_address_that_is_none(
    lines: list[str], monkeypatch: pytest.MonkeyPatch, waits: list[float], address: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    assert REPO in str(refusal(lines))


# ---------------------------------------------------------------- redirects
@pytest.mark.parametrize("methods", [("HEAD", "GET"), ("GET",)])
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"], ids=["other-host", "other-port"])
def test_a_redirect_elsewhere_goes_without_the_token(
    hub: FakeHub, lines: list[str], monkeypatch: pytest.MonkeyPatch, methods: tuple[str, ...],
    name: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.behaviour.token = TOKEN
    with FakeHub({REPO: FILES}) as store:
        host = store.url.replace("127.0.0.1", name)

        def redirect(handler: Handler, kind: str, name: str) -> bool:
            if kind == "file" and name.endswith(".safetensors") and handler.command in methods:
                head = hub.file_head(REPO, name) | {"Location": host + handler.path}
                return handler.answer(302, b"", head)
            return False

        hub.behaviour.fault = redirect
        assert contents(fetch_repository(REPO, "main", lines.append)) == FILES
        assert store.gets("model.safetensors")
        assert {asked.token for asked in store.asked} == {None}
    assert {asked.token for asked in hub.asked} == {TOKEN}


def test_a_redirected_listing_goes_without_the_token(
    hub: FakeHub, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with FakeHub({}) as other:  # the same host name, another port: another origin
        hub.behaviour.fault = lambda handler, *_: handler.answer(
            302, b"", {"Location": other.url + handler.path}
        )
        assert "no such repo" in str(refusal(lines))
        assert [asked.token for asked in other.asked] == [None]


def test_a_circle_of_redirects_ends(hub: FakeHub, lines: list[str]) -> None:
    hub.behaviour.fault = lambda handler, *_: handler.answer(302, b"", {"Location": handler.path})
    assert "redirects in a circle" in str(refusal(lines))


# ---------------------------------------------------------------- a network that fails half way
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("ranges", [True, False, 416], ids=["ranges", "no-ranges", "416"])
def test_a_download_survives_a_cut(
    hub: FakeHub, lines: list[str], ranges: bool | int, reset: bool
) -> None:
    hub.behaviour.cuts, hub.behaviour.ranges, hub.behaviour.reset = 1, ranges, reset
    assert contents(fetch_repository(REPO, "main", lines.append)) == FILES
    gets = hub.gets("model.safetensors")
    assert len(gets) >= 2
    if not reset:  # a reset ends in an error that the library does not resume from
        assert gets[1].range == "bytes=1048576-"
        assert any("resuming" in line for line in lines)


def test_a_connection_that_is_always_cut_ends_in_a_refusal(
    hub: FakeHub, lines: list[str], waits: list[float]
) -> None:
    hub.behaviour.cuts, hub.behaviour.cut_at = 10_000, 0.1
    error = str(refusal(lines))
    assert f"{REPO}: model.safetensors: the connection to the hub" in error
    assert len(hub.gets("model.safetensors")) < 40
    hub.behaviour.cuts = 0
    assert contents(fetch_repository(REPO, "main", lines.append)) == FILES


def test_a_hub_that_stops_answering_half_way(
    hub: FakeHub, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.05)
    hub.behaviour.chunk_wait = 5.0
    assert "model.safetensors: the hub at 127.0.0.1" in str(refusal(lines))


CHANGED = [
    ("model.safetensors", WEIGHTS[:-1], "size"),
    ("model.safetensors", WEIGHTS + b"\0", "size"),
    ("model.safetensors", b"\1" + WEIGHTS[1:], "digest"),
    ("config.json", FILES["config.json"].replace(b"llama", b"lamma"), "digest"),
]


@pytest.mark.parametrize(("name", "data", "words"), CHANGED, ids=["short", "long", "lfs", "git"])
def test_a_wrong_file_is_refused_by_name_and_not_kept(
    hub: FakeHub, lines: list[str], name: str, data: bytes, words: str
) -> None:
    def fault(handler: Handler, kind: str, asked: str) -> bool:
        if kind == "file" and asked == name and handler.command == "GET":
            return handler.answer(200, data, hub.file_head(REPO, name))
        return False

    hub.behaviour.fault = fault
    error = str(refusal(lines))
    assert name in error
    assert words in error
    assert not (hub_cache.snapshot_directory(REPO, COMMIT) / name).exists()
    assert len(hub.gets(name)) == huggingface.MAX_TRIES
    hub.behaviour.fault = None
    assert contents(fetch_repository(REPO, "main", lines.append)) == FILES


def test_a_bad_file_that_heals_is_fetched_again(hub: FakeHub, lines: list[str]) -> None:
    def fault(handler: Handler, kind: str, asked: str) -> bool:
        if kind == "file" and handler.command == "GET" and len(hub.gets("model.safetensors")) == 1:
            return handler.answer(200, WEIGHTS[::-1], hub.file_head(REPO, "model.safetensors"))
        return False

    hub.behaviour.fault = fault
    hub.repos[REPO] = FILES
    assert contents(fetch_repository(REPO, "main", lines.append)) == FILES
    assert any("trying again" in line for line in lines)


def test_the_hub_may_ask_to_wait_a_little(
    hub: FakeHub, lines: list[str], waits: list[float]
) -> None:
    seconds = ["3"]

    def fault(handler: Handler, kind: str, name: str) -> bool:
        if name == "model.safetensors" and handler.command == "GET" and seconds:
            return handler.answer(429, b"", {"Retry-After": seconds.pop()})
        return False

    hub.behaviour.fault = fault
    assert contents(fetch_repository(REPO, "main", lines.append)) == FILES
    assert waits == [4.0]
    assert f"{REPO}: model.safetensors: 127.0.0.1:{hub.port} asks to wait 4 s" in lines
    seconds.append("86400")
    os.remove(hub_cache.snapshot_directory(REPO, COMMIT) / "model.safetensors")
    for blob in hub_cache.snapshot_directory(REPO, COMMIT).parents[1].glob("blobs/*"):
        blob.unlink()
    error = refusal(lines)
    assert isinstance(error, BusyError)
    assert "86401 s" in str(error)
    assert waits == [4.0]


# ---------------------------------------------------------------- the disk
def test_no_room_is_said_before_the_download(
    hub: FakeHub, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "free_space", lambda _: 1_000_000)
    error = refusal(lines)
    assert isinstance(error, TooLargeError)
    assert "3.1 MB" in str(error)
    assert "1.0 MB" in str(error)
    assert not [asked for asked in hub.asked if "/resolve/" in asked.path]


def test_a_disk_that_fills_up_on_the_way(
    hub: FakeHub, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    error = refusal(lines)
    assert isinstance(error, TooLargeError)
    assert "the disk is full" in str(error)


def test_a_cache_that_cannot_be_made(
    hub: FakeHub, lines: list[str], own_caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_caches / "file").write_bytes(b"")
    monkeypatch.setenv("HF_HOME", str(own_caches / "file" / "hf"))
    assert "Not a directory" in str(refusal(lines))
    monkeypatch.setenv("CALDRIX_CACHE_DIR", str(own_caches / "file" / "caldrix"))
    assert "Not a directory" in str(refusal(lines))
    monkeypatch.setenv("HF_HOME", str(own_caches / "hf"))
    copy = fill_cache(FILES)
    assert fetch_repository(REPO, "main", lines.append) == copy
    assert "Not a directory; using the copy" in lines[-1]


# ---------------------------------------------------------------- a copy that another program left
@pytest.fixture(params=["dead", "silent", "503"])
def bad_hub(
    request: pytest.FixtureRequest, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Asked]]:
    """A hub that is of no use; what it was asked is the value."""
    monkeypatch.setattr(huggingface, "ASK_SECONDS_WITH_COPY", 0.03)
    monkeypatch.setattr(huggingface, "ASK_SECONDS", 0.03)
    if request.param == "dead":
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        yield hub.asked
    elif request.param == "503":
        hub.behaviour.fault = always(503)
        yield hub.asked
    else:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
            yield hub.asked


@pytest.mark.parametrize("links", [True, False], ids=["links", "plain"])
def test_a_complete_copy_starts_without_a_hub(
    bad_hub: list[Asked], lines: list[str], monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    directory = fill_cache(FILES, links=links)
    assert fetch_repository(REPO, "main", lines.append) == directory
    assert lines[0].endswith(f"using the copy in the Hugging Face cache, revision {COMMIT}")
    bad_hub.clear()
    assert fetch_repository(REPO, COMMIT, lines.append) == directory
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch_repository(REPO, "main", lines.append) == directory
    assert not bad_hub


@pytest.mark.parametrize("revision", ["main", COMMIT])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_lacking_file_is_named_with_the_revision(
    bad_hub: list[Asked], lines: list[str], name: str, revision: str
) -> None:
    link = fill_cache(FILES) / name
    link.resolve().unlink()
    assert f"revision {COMMIT}, lacks {name}" in str(refusal(lines, revision=revision))
    link.unlink()
    assert f"revision {COMMIT}, lacks {name}" in str(refusal(lines, revision=revision))


def test_a_copy_is_completed_and_checked_once_when_the_hub_answers(
    hub: FakeHub, lines: list[str]
) -> None:
    partial = {name: data for name, data in FILES.items() if name != "chat_template.jinja"}
    directory = fill_cache(partial)
    (directory / "tokenizer_config.json").resolve().write_bytes(b"{ }")
    assert fetch_repository(REPO, "main", lines.append) == directory
    assert contents(directory) == FILES
    assert not hub.gets("model.safetensors")
    hub.asked.clear()
    assert fetch_repository(REPO, "main", lines.append) == directory
    assert not hub.asked


def test_a_file_cut_short_after_its_download_is_noticed(hub: FakeHub, lines: list[str]) -> None:
    directory = fetch_repository(REPO, "main", lines.append)
    blob = (directory / "model.safetensors").resolve()
    blob.write_bytes(WEIGHTS[:1000])
    assert contents(fetch_repository(REPO, "main", lines.append)) == FILES


def test_what_a_killed_download_left_is_removed(hub: FakeHub, lines: list[str]) -> None:
    directory = fetch_repository(REPO, COMMIT, lines.append)
    base = directory.parent.parent
    etag = hashlib.sha256(WEIGHTS).hexdigest()
    left = base / "blobs" / f"{etag}.0123abcd.incomplete"
    older = base / "blobs" / f"{etag}.incomplete"  # a library that resumes across processes
    for path in (left, older):
        path.write_bytes(b"x")
    with storage.locked(base.parent / ".locks" / base.name / f"{etag}.lock", lambda: None):
        fetch_repository(REPO, "main", lines.append)
        assert left.exists()
    fetch_repository(REPO, "refs/pr/1", lines.append)
    assert not left.exists()
    assert older.exists()


def test_a_link_out_of_the_cache_is_not_followed_to_delete(
    hub: FakeHub, lines: list[str], own_caches: Path
) -> None:
    mine = own_caches / "mine.safetensors"
    mine.write_bytes(b"something else")
    link = fill_cache(FILES) / "model.safetensors"
    link.unlink()
    link.symlink_to(mine)
    assert contents(fetch_repository(REPO, "main", lines.append)) == FILES
    assert mine.read_bytes() == b"something else"


def test_a_damaged_ref_or_record_is_no_answer(hub: FakeHub, lines: list[str]) -> None:
    directory = fetch_repository(REPO, "main", lines.append)
    record = next((storage.cache_directory() / "hub").rglob("*.json"))
    for damage in (b"", b"[]", b"{}", b'{"x": 1}', b"\xff"):
        record.write_bytes(damage)
        assert fetch_repository(REPO, "main", lines.append) == directory
    ref = directory.parent.parent / "refs" / "main"
    for damage in (b"", b"../../x", b"\xff"):
        ref.write_bytes(damage)
        assert fetch_repository(REPO, "main", lines.append) == directory
        assert ref.read_text() == COMMIT

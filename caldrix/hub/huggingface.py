"""Repos of the Hugging Face Hub: the needed files of one commit, in the library's own cache.

A complete copy is used as it is, without the network and without importing the library. What is
fetched is compared with the size and the digest that the hub names before it counts as complete.
The token stays with the library, which sends it to the hub and to no other host.
"""

import hashlib
import inspect
import logging
import os
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from caldrix import __version__, storage
from caldrix.errors import BusyError, CaldrixError, NotFoundError, RefusedError
from caldrix.hub import hub_cache
from caldrix.hub.hub_errors import endpoint, explain, hub_name, is_transient
from caldrix.hub.repo_files import (
    CONFIG,
    SMALL_FILES,
    choose_files,
    find_missing,
    listed,
    model_path,
)
from caldrix.progress import Progress
from caldrix.units import format_size

ASK_SECONDS = 10.0
ASK_SECONDS_WITH_COPY = 4.0  # with a copy here, a slow hub is not worth waiting for
MAX_WAIT_SECONDS = 60.0  # a hub that asks for more patience than this is refused
MAX_TRIES = 3
RETRY_SECONDS = 1.0
CHUNK_BYTES = 1 << 20

Status = Callable[[str], None]
Judge = Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as the hub lists it; a size or a digest that it does not name is None."""

    name: str
    size_bytes: int | None
    sha256: str | None
    git_sha1: str | None


def fetch_repository(repo: str, revision: str, status: Status, judge: Judge | None = None) -> Path:
    """The model's directory, or its .gguf file, in the Hugging Face cache.

    `judge` sees config.json before any weights are fetched; what it raises ends the download.
    """
    found = _find_copy(repo, revision, status)
    if found:
        return found
    try:
        return _fetch(repo, revision, status, judge)
    except CaldrixError as error:
        return _fall_back(repo, revision, error, status)


def _find_copy(repo: str, revision: str, status: Status) -> Path | None:
    """The copy in the cache, if it needs no question to the hub."""
    copy = hub_cache.find_snapshot(repo, revision)
    if copy is None or copy.missing is not None:
        return None
    if copy.is_recorded or hub_cache.is_commit(revision) or hub_cache.is_offline():
        status(_already_here(repo, copy.commit))
        return model_path(copy.directory)
    return None


def _fetch(repo: str, revision: str, status: Status, judge: Judge | None) -> Path:
    """Asks the hub and fetches what is not here, one caldrix at a time."""
    if hub_cache.is_offline():
        raise NotFoundError(f"{repo}@{revision} cannot be fetched: HF_HUB_OFFLINE is set")
    lock = hub_cache.lock_path(repo)
    storage.make_directory(lock.parent)
    with storage.locked(lock, lambda: status(f"waiting for another caldrix to download {repo}")):
        copy = _find_copy(repo, revision, status)
        return copy or _download(repo, revision, status, judge)


def _fall_back(repo: str, revision: str, error: CaldrixError, status: Status) -> Path:
    """When the hub is of no use, a copy that some other program has left is good enough."""
    copy = hub_cache.find_snapshot(repo, revision)
    if copy is None:
        raise error
    where = f"the copy in the Hugging Face cache, revision {copy.commit}"
    if copy.missing is not None:
        raise type(error)(f"{error}; {where}, lacks {copy.missing}") from error
    status(f"{error}; using {where}")
    return model_path(copy.directory)


def _download(repo: str, revision: str, status: Status, judge: Judge | None) -> Path:
    copy = hub_cache.find_snapshot(repo, revision)
    is_whole = copy is not None and copy.missing is None
    seconds = ASK_SECONDS_WITH_COPY if is_whole else ASK_SECONDS
    commit, listing = _list_files(repo, revision, seconds)
    files = [listing[name] for name in choose_files(repo, listing)]
    directory = hub_cache.snapshot_directory(repo, commit)
    waiting = [file for file in files if _problem(directory / file.name, file)]
    n_bytes = sum(file.size_bytes or 0 for file in waiting)
    hub_cache.remove_partials(repo)
    storage.require_space(hub_cache.cache_root(), n_bytes, repo)
    if waiting:
        sizes = [f"{file.name} {format_size(file.size_bytes or 0)}" for file in waiting]
        status(f"downloading {repo}, revision {commit}: {listed(sizes)}; {format_size(n_bytes)}")
    else:
        status(_already_here(repo, commit))
    for file in waiting:
        if judge and file.name not in SMALL_FILES and CONFIG in listing:
            judge(directory / CONFIG)
            judge = None
        _fetch_file(repo, commit, file, Progress(file.name, file.size_bytes), status)
    missing = find_missing(directory)
    if missing:
        raise NotFoundError(f"{repo} at revision {commit} has no {missing}")
    hub_cache.write_ref(repo, revision, commit)
    hub_cache.write_record(
        repo, commit, {file.name: (directory / file.name).stat().st_size for file in files}
    )
    return model_path(directory)


def _already_here(repo: str, commit: str) -> str:
    return f"{repo} is already in the Hugging Face cache, revision {commit}"


def _library() -> ModuleType:
    """huggingface_hub, with its telemetry, warnings and logging off; slow to import."""
    for name in ("TELEMETRY", "SYMLINKS_WARNING", "UPDATE_CHECK", "EXPERIMENTAL_WARNING"):
        os.environ.setdefault(f"HF_HUB_DISABLE_{name}", "1")
    # Its second transport, xet, has its own threads and signal handling; plain HTTP is what the
    # tests cover. A user may choose it with HF_HUB_DISABLE_XET=0.
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
    import huggingface_hub
    from huggingface_hub import constants

    constants.DOWNLOAD_CHUNK_SIZE = CHUNK_BYTES  # less is lost, and sooner shown, than by 10 MB
    logger = logging.getLogger("huggingface_hub")
    logger.handlers.clear()
    logger.propagate = False
    return huggingface_hub


def _list_files(repo: str, revision: str, seconds: float) -> tuple[str, dict[str, RemoteFile]]:
    """The commit that a revision means, and the files of that commit."""
    library = _library()
    api = library.HfApi(endpoint=endpoint(), library_name="caldrix", library_version=__version__)
    try:
        info = api.model_info(repo, revision=revision, timeout=seconds, files_metadata=True)
        commit = str(info.sha)
        files = [_remote_file(sibling) for sibling in info.siblings or ()]
    except Exception as error:  # the library's HTTP client may raise anything of its own
        has_token = library.get_token() is not None
        raise explain(error, repo, revision, None, has_token=has_token) from error
    if not hub_cache.is_commit(commit):
        raise RefusedError(f"{repo}: what answers at {hub_name()} is not a model hub")
    return commit, {file.name: file for file in files}


def _remote_file(sibling: Any) -> RemoteFile:
    size = sibling.size if isinstance(sibling.size, int) and sibling.size >= 0 else None
    sha256 = sibling.lfs.sha256 if sibling.lfs else None
    git_sha1 = None if sibling.lfs else sibling.blob_id
    return RemoteFile(str(sibling.rfilename), size, _digest(sha256, 64), _digest(git_sha1, 40))


def _digest(text: object, n_digits: int) -> str | None:
    is_digest = isinstance(text, str) and re.fullmatch(rf"[0-9a-f]{{{n_digits}}}", text)
    return str(text) if is_digest else None


def _fetch_file(
    repo: str, commit: str, file: RemoteFile, progress: Progress, status: Status
) -> None:
    """Fetches one file into the cache and checks it; a bad one is removed and fetched again."""
    path = hub_cache.snapshot_directory(repo, commit) / file.name
    hub_cache.discard(repo, path)  # the library would take one that is there for good
    for attempt in range(1, MAX_TRIES + 1):
        try:
            _call_library(repo, commit, file, progress, status, is_fresh=attempt == 1)
        except Exception as error:  # see _list_files
            has_token = _library().get_token() is not None
            refusal = explain(error, repo, commit, file.name, has_token=has_token)
            if attempt == MAX_TRIES or not is_transient(error):
                raise refusal from error
        else:
            problem = _problem(path, file)
            if problem is None:
                return
            refusal = RefusedError(f"{repo}: {file.name} at revision {commit} {problem}")
            hub_cache.discard(repo, path)
            if attempt == MAX_TRIES:
                raise refusal
        status(f"{refusal}; trying again")
        time.sleep(RETRY_SECONDS)


def _call_library(
    repo: str, commit: str, file: RemoteFile, progress: Progress, status: Status, *, is_fresh: bool
) -> None:
    """One hf_hub_download. The library resumes a connection that is lost on the way by itself."""
    library = _library()
    handler = _LogReader(f"{repo}: {file.name}", progress, status)
    logger = logging.getLogger("huggingface_hub")
    logger.addHandler(handler)
    download = library.hf_hub_download
    options: dict[str, Any] = {}
    if "tqdm_class" in inspect.signature(download).parameters:
        options["tqdm_class"] = _bar_class(progress)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            download(
                repo,
                file.name,
                revision=commit,
                cache_dir=hub_cache.cache_root(),
                endpoint=endpoint(),
                force_download=not is_fresh,
                library_name="caldrix",
                library_version=__version__,
                **options,
            )
    finally:
        logger.removeHandler(handler)
        progress.erase()


def _problem(path: Path, file: RemoteFile) -> str | None:
    """What is wrong with a file on disk, or None when it is the one that the hub lists."""
    try:
        size = path.stat().st_size
    except OSError:
        return "is not there"
    if file.size_bytes is not None and size != file.size_bytes:
        return f"has {size} bytes, not the {file.size_bytes} that the hub names"
    wanted = file.sha256 or file.git_sha1
    if wanted is None:
        return None
    digest = hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % size)
    progress = Progress(f"checking {file.name}", size)
    with storage.disk_errors(path), open(path, "rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            progress.update(source.tell())
    progress.erase()
    if digest.hexdigest() != wanted:
        return f"has the digest {digest.hexdigest()}, not the {wanted} that the hub names"
    return None


def _bar_class(progress: Progress) -> type:
    """What the library takes for a tqdm class: it reports to `progress`."""

    class Bar:
        def __init__(self, *_: object, initial: int = 0, **__: object) -> None:
            self._n_bytes = initial

        def __enter__(self) -> "Bar":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, n: float | None = 1) -> None:
            self._n_bytes += int(n or 0)
            progress.update(self._n_bytes)

        def close(self) -> None:
            pass

    return Bar


class _LogReader(logging.Handler):
    """Reads the library's warnings for two things worth a line: it waits, or it resumes."""

    _WAITING = re.compile(r"Waiting (\d+(?:\.\d+)?)s before retry")

    def __init__(self, what: str, progress: Progress, status: Status) -> None:
        super().__init__(logging.WARNING)
        self._what = what
        self._progress = progress
        self._status = status

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        waiting = self._WAITING.search(text)
        if waiting:
            seconds = float(waiting[1])
            if seconds > MAX_WAIT_SECONDS:
                raise BusyError(
                    f"{self._what}: {hub_name()} has had too many requests (429);"
                    f" try again after {seconds:.0f} s"
                )
            self._tell(f"{hub_name()} asks to wait {seconds:.0f} s")
        elif "Trying to resume" in text:
            self._tell("the connection was lost; resuming")

    def _tell(self, text: str) -> None:
        self._progress.erase()
        self._status(f"{self._what}: {text}")

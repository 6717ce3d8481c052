"""Runs `pip download` for one wheel: which command, which errors, how it ends.

pip runs as a process of its own, without a shell and without the current directory on its path,
and honours the user's own pip settings (index, proxy, certificates). Its words are read for the
reason of a failure. Knows nothing of what a wheel is for.
"""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

from caldrix.errors import CaldrixError, NotFoundError, RefusedError, printable
from caldrix.progress import Progress
from caldrix.storage import disk_refusal

LOOK_SECONDS = 0.2  # how often the bytes on disk are counted for the progress line
STOP_SECONDS = 2.0
LOG_BYTES = 65536

MAX_TRIES = 2  # for a wheel that arrives damaged; pip itself tries a lost connection again

_DAMAGED = re.compile(
    r"DO NOT MATCH THE HASHES|not enough bytes|IncompleteRead|incomplete-download"
)
_VERSIONS = re.compile(r"from versions: (?!none\))(.+?)\)")
_NETWORK = re.compile(
    r"Retrying \(|NewConnectionError|ConnectTimeout|Connection refused|Max retries|timed out"
)
_MISSING = re.compile(r"No matching distribution|HTTP error 404")


def download_wheel(package: str, version: str | None, work: Path, n_bytes: int | None) -> Path:
    """Downloads one wheel into `work`; `n_bytes`, where known, is for the progress line."""
    requirement = f"{package}=={version}" if version else package
    for attempt in range(1, MAX_TRIES + 1):
        downloads = work / f"wheels-{attempt}"
        downloads.mkdir()
        progress = Progress(requirement, n_bytes)
        status, words = _run(_command(requirement, downloads), work, progress)
        wheels = list(downloads.glob("*.whl"))
        if status == 0 and len(wheels) == 1:
            return wheels[0]
        if attempt == MAX_TRIES or not _DAMAGED.search(words):
            raise _reason(requirement, words, work)
    raise AssertionError("the last try returns or raises")


def _command(requirement: str, downloads: Path) -> list[str]:
    # -P keeps a pip.py in the current directory from being run in place of pip.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--dest", str(downloads), "--no-cache-dir", "--disable-pip-version-check"]
    command += ["--no-input", "--progress-bar", "off", "--retries", "2", "--timeout", "15"]
    return [*command, requirement]


def _run(command: list[str], work: Path, progress: Progress) -> tuple[int, str]:
    """pip's exit status and the end of what it said."""
    environment = dict(
        os.environ, TMPDIR=str(work)
    )  # so that what pip leaves is deleted with `work`
    with open(work / "pip.log", "w+b") as log:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        except OSError as error:
            raise RefusedError(f"cannot run {command[0]!r} for pip: {error.strerror}") from error
        try:
            while process.poll() is None:
                try:
                    process.wait(timeout=LOOK_SECONDS)
                except subprocess.TimeoutExpired:
                    progress.update(_bytes_in(work))
        finally:
            progress.erase()
            _stop(process)
        log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
        return process.returncode, log.read().decode(errors="replace")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _bytes_in(directory: Path) -> int:
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue  # pip moved it meanwhile
    return total


def _reason(requirement: str, words: str, work: Path) -> CaldrixError:
    """One line for what pip said at length."""
    versions = _VERSIONS.search(words)
    if "No module named pip" in words:
        return RefusedError(
            f"{requirement}: this Python has no pip to download it with;"
            f" run `{sys.executable} -m ensurepip`"
        )
    if "No space left" in words or "Disk quota exceeded" in words:
        return disk_refusal(OSError(errno.ENOSPC, ""), work.parent)
    if _DAMAGED.search(words):
        return RefusedError(f"{requirement}: the wheel arrived cut short or changed; try again")
    if versions:
        known = printable(versions[1])
        return NotFoundError(f"{requirement}: the package index has no such version, but {known}")
    if _NETWORK.search(words):
        return RefusedError(f"{requirement}: the package index cannot be reached")
    if _MISSING.search(words):
        return NotFoundError(
            f"{requirement}: the package index has no such package,"
            " or no wheel of it for this machine"
        )
    errors = re.findall(r"^ERROR: *(.+)$", words, re.MULTILINE)
    reason = errors[-1] if errors else words.strip().rpartition("\n")[2] or "no reason given"
    return RefusedError(f"{requirement}: pip could not download it: {printable(reason, 200)}")

"""Runs `pip download` for one wheel: which command, which errors, how it ends.

pip runs as a process of its own, without a shell and without the current directory on its path,
and honours the user's own pip settings (index, proxy, certificates). Its words are read for the
reason of a failure. Knows nothing of what a wheel is for.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from caldrix.errors import CaldrixError, NotFoundError, RefusedError, printable
from caldrix.hub.progress import Progress

LOOK_SECONDS = 0.2  # how often the bytes on disk are counted for the progress line
STOP_SECONDS = 2.0
LOG_BYTES = 65536

_NETWORK = re.compile(
    r"Retrying \(|NewConnectionError|ConnectTimeout|Connection refused|Max retries|timed out"
)
_MISSING = re.compile(r"No matching distribution|from versions:|HTTP error 404")


def download_wheel(package: str, version: str | None, work: Path, n_bytes: int | None) -> Path:
    """Downloads one wheel into `work`; `n_bytes`, where known, is for the progress line."""
    downloads = work / "wheels"
    downloads.mkdir()
    requirement = f"{package}=={version}" if version else package
    # -P keeps a pip.py in the current directory from being run in place of pip.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += [
        "--dest",
        str(downloads),
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--no-input",
    ]
    command += ["--progress-bar", "off", "--retries", "2", "--timeout", "15", requirement]
    log = work / "pip.log"
    status = _run(command, work, log, Progress(requirement, n_bytes))
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES))
        words = file.read().decode(errors="replace")
    wheels = list(downloads.glob("*.whl"))
    if status != 0 or len(wheels) != 1:
        raise _reason(requirement, words)
    return wheels[0]


def _run(command: list[str], work: Path, log: Path, progress: Progress) -> int:
    environment = dict(
        os.environ, TMPDIR=str(work)
    )  # so that what pip leaves is deleted with `work`
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            while True:
                try:
                    return process.wait(timeout=LOOK_SECONDS)
                except subprocess.TimeoutExpired:
                    progress.update(_bytes_in(work))
        finally:
            progress.erase()
            _stop(process)


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


def _reason(requirement: str, words: str) -> CaldrixError:
    """One line for what pip said at length."""
    if "No module named pip" in words:
        return RefusedError(
            f"{requirement}: this Python has no pip to download it with;"
            f" run `{sys.executable} -m ensurepip`"
        )
    if "No space left" in words:
        return RefusedError(f"{requirement}: the disk is full")
    if _NETWORK.search(words):
        return RefusedError(f"{requirement}: the package index cannot be reached")
    if _MISSING.search(words):
        return NotFoundError(
            f"{requirement}: the package index has no wheel of it for this machine"
        )
    errors = re.findall(r"^ERROR: *(.+)$", words, re.MULTILINE)
    reason = (
        errors[-1].strip() if errors else words.strip().rpartition("\n")[2] or "no reason given"
    )
    return RefusedError(f"{requirement}: pip could not download it: {printable(reason, 200)}")

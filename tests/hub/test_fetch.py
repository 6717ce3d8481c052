"""What is known of a model's source once its files are here."""

from pathlib import Path

import pytest

from caldrix.hub.fetch import revision_of
from caldrix.hub.resolve import parse_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("argument", "path", "revision"),
    [
        ("owner/name", f"/cache/models--owner--name/snapshots/{COMMIT}", COMMIT),
        ("owner/name@v1", f"/cache/models--owner--name/snapshots/{COMMIT}/m.gguf", COMMIT),
        ("owner/name@v1", "/elsewhere", "v1"),
        ("pypi:a-package@1.2", f"/cache/{COMMIT}/m.gguf", "1.2"),
        ("pypi:a-package", "/cache/m.gguf", None),
        ("./a-directory", f"/{COMMIT}", None),
    ],
)
def test_the_revision_is_the_one_that_was_found(
    argument: str, path: str, revision: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-directory").mkdir()
    assert revision_of(parse_model(argument), Path(path)) == revision

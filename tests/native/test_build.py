"""The build: what it compiles, what cffi is told, what a package holds; and it needs little."""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import build_native
import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_every_declaration_reaches_cffi() -> None:
    text = build_native.interface()
    assert "#include" not in text
    assert "/*" not in text
    for header in ("native/include/ops.h", "native/include/caldrix.h"):
        source = (ROOT / header).read_text(encoding="utf8")
        source = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
        names = re.findall(r"^(?:struct|enum) (cx_\w+) \{", source, re.MULTILINE)
        names += re.findall(r"\b(cx_\w+)\(", source)
        names += re.findall(r"^#define (CX_\w+) \S", source, re.MULTILINE)
        assert len(names) > 5
        for name in names:
            assert re.search(rf"\b{name}\b", text), name


def test_every_source_is_compiled_and_rows_have_their_flags() -> None:
    compiled = dict(build_native.sources())
    others = {path for path in (ROOT / "native").rglob("*.c") if not path.name.startswith("row_")}
    assert others <= set(compiled)
    assert all(not flags for path, flags in compiled.items() if path in others)
    rows = {path.name: flags for path, flags in compiled.items() if path not in others}
    assert rows.pop("row_scalar.c") == []
    assert rows
    assert all(flag.startswith("-march=") for flags in rows.values() for flag in flags)
    assert all(flags for flags in rows.values())


def test_a_missing_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    message = "no C compiler: no-such-compiler is not on the path; install gcc or clang, or set CC"
    with pytest.raises(SystemExit, match=message):
        build_native.setting()


def test_a_source_distribution_has_the_native_sources() -> None:
    pytest.importorskip("setuptools")
    import build_command
    from setuptools import Distribution

    shipped = build_command.BuildExtension(Distribution()).get_source_files()
    for path in [*(ROOT / "native").rglob("*.[ch]"), ROOT / "tools/limited_api/Python.h"]:
        assert path.relative_to(ROOT).as_posix() in shipped


@pytest.mark.slow
def test_builds_without_warnings_and_without_headers_of_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    paths = sysconfig.get_paths()
    missing = paths | {"include": "/nonexistent", "platinclude": "/nonexistent"}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: missing)
    package = build_native.shadow(tmp_path)
    how = build_native.Setting(build_native.setting().cc, "", True, tmp_path / "objects")
    build_native.build(how, package / build_native.module_name())
    made = package / build_native.module_name()
    first = made.stat().st_mtime_ns
    build_native.build(how, made)
    assert made.stat().st_mtime_ns == first, "nothing changed, yet it was linked again"
    code = "from caldrix import native; print(native.ffi.__class__, len(native.quant_types()))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": str(tmp_path)}, text=True, capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.endswith(" 16\n"), done.stderr

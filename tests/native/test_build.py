"""The build: what it compiles, what cffi is told, what a package holds; and it needs little."""

import dataclasses
import os
import re
import shutil
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
    assert all(flag.startswith("-m") for flags in rows.values() for flag in flags)
    assert all(flags and flags[0].startswith("-march=") for flags in rows.values())


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


def test_builds_without_headers_of_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = build_native.setting()
    how = dataclasses.replace(plain, objects=tmp_path / "objects")
    shutil.copytree(plain.objects, how.objects)  # what does not see Python stays as it is
    missing = sysconfig.get_paths() | {"include": "/nonexistent", "platinclude": "/nonexistent"}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: missing)
    made = build_native.shadow(tmp_path) / build_native.module_name()
    build_native.build(how, made)
    first = made.stat().st_mtime_ns
    build_native.build(how, made)
    assert made.stat().st_mtime_ns == first, "nothing changed, yet it was linked again"
    code = (
        "from caldrix import _native, native; print(_native.__file__, native.decode(0, b'abcd', 1))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": str(tmp_path)}, text=True, capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == f"{made} [1.6777999e+22]\n", done.stderr


def test_an_object_is_built_again_when_it_must_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    header, source, target = (tmp_path / name for name in ("a b.h", "a.c", "out/a.o"))
    header.write_text("#define X 1\n")
    source.write_text('#include "a b.h"\nint a(void);\nint a(void) { return X; }\n')
    plain = build_native.setting()
    commands: list[list[str]] = []
    run = build_native.run
    monkeypatch.setattr(
        build_native, "run", lambda command: commands.append(command) or run(command)
    )

    def builds(flags: list[str], werror: bool = False) -> int:
        commands.clear()
        how = dataclasses.replace(plain, werror=werror)
        build_native.compile_one(how, source, flags, target)
        return len(commands)

    assert [builds([]), builds([]), builds([], werror=True)] == [1, 0, 0]
    assert [builds(["-DY"]), builds(["-DY"])] == [1, 0]
    later = target.stat().st_mtime + 2
    os.utime(header, (later, later))
    os.utime(target, (later - 1, later - 1))
    assert builds(["-DY"]) == 1
    source.write_text("static int a(void) { return 1; }\n")
    os.utime(target, (1, 1))
    assert [builds(["-Wall"]), builds(["-Wall"])] == [1, 1], "a warning must come again"
    with pytest.raises(SystemExit, match="cc failed"):
        builds(["-Wall"], werror=True)

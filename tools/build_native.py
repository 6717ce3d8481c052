"""Builds the native library: every C source with its own flags, linked into caldrix._native.

`--inplace` puts the module into caldrix/ of this checkout and rebuilds only what changed; packages
are built through tools/build_command.py, which calls `build` too. `--sanitize` builds beside the
checkout: build/<sanitizers>/ is then a PYTHONPATH whose caldrix is this one with that module.
Knows the compiler's flags and which row file wants which; knows nothing of what the sources do.
"""

import argparse
import contextlib
import fcntl
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "native"
HEADERS = (NATIVE / "include/ops.h", NATIVE / "include/caldrix.h")

# Contraction is off because the numerics contract writes every fused multiply-add itself.
FLAGS = ["-std=c11", "-g0", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden", "-pthread"]
INCLUDES = [f"-I{NATIVE}", f"-I{NATIVE / 'include'}"]
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wvla", "-Wmissing-prototypes"]

# native/cpu/row_*.c of each architecture: a row is one file with the flags of its processors.
ROWS = {
    "x86_64": {
        "row_v4_vnni.c": ["-march=x86-64-v4", "-mavx512vnni"],
        "row_v4.c": ["-march=x86-64-v4"],
        "row_v3.c": ["-march=x86-64-v3"],
        "row_v2.c": ["-march=x86-64-v2"],
        "row_scalar.c": [],
    },
    "aarch64": {
        "row_dotprod.c": ["-march=armv8.2-a+dotprod"],
        "row_neon.c": ["-march=armv8-a"],
        "row_scalar.c": [],
    },
}
MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class Setting:
    """How to build: the compiler, what differs from the plain build, where objects are kept."""

    cc: tuple[str, ...]
    sanitize: str
    werror: bool
    objects: Path

    @property
    def extra(self) -> list[str]:
        if not self.sanitize:
            return ["-O3"]
        flags = ["-O1", f"-fsanitize={self.sanitize}", "-fno-omit-frame-pointer", "-g1"]
        return flags + ["-fno-sanitize-recover=undefined"] * ("undefined" in self.sanitize)


def fail(message: str) -> SystemExit:
    return SystemExit(f"build_native: {message}")


def setting(sanitize: str = "", werror: bool = False) -> Setting:
    cc = tuple(shlex.split(os.environ.get("CC", "cc")))
    if not cc or shutil.which(cc[0]) is None:
        name = cc[0] if cc else "(empty CC)"
        raise fail(f"no C compiler: {name} is not on the path; install gcc or clang, or set CC")
    name = "-".join(["native", *filter(None, sanitize.split(","))])
    return Setting(cc, sanitize, werror, ROOT / "build" / name)


def module_name() -> str:
    """One module serves every Python: the limited API, save on free-threaded builds."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    return "_native.abi3.so"


def sources() -> list[tuple[Path, list[str]]]:
    """Every source of this architecture with the flags that are its own."""
    machine = MACHINES.get(platform.machine().lower())
    if machine is None:
        raise fail(f"{platform.machine()}: no row of instructions is written for this processor")
    found = []
    for path in sorted(NATIVE.rglob("*.c")):
        if not path.name.startswith("row_"):
            found.append((path, []))
        elif path.name in ROWS[machine]:
            found.append((path, ROWS[machine][path.name]))
        elif not any(path.name in rows for rows in ROWS.values()):
            raise fail(f"{path.relative_to(ROOT)}: a row without flags; add it to ROWS")
    return found


def interface() -> str:
    """The headers as cffi wants them: declarations and integer constants, no preprocessor."""
    lines = []
    for header in HEADERS:
        text = header.read_text(encoding="utf8")
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
        for line in text.splitlines():
            constant = re.fullmatch(r"#define (CX_\w+) (0x[0-9a-f]+u?|\d+)\s*", line)
            if constant or not line.startswith("#"):
                lines.append(line.rstrip())
    return "\n".join(lines) + "\n"


def write_module(target: Path) -> None:
    """The C source of the Python module, written anew only when it would differ."""
    stamp = max(path.stat().st_mtime for path in (*HEADERS, Path(__file__)))
    if target.exists() and target.stat().st_mtime >= stamp:
        return
    try:
        from cffi import FFI
    except ImportError:
        raise fail(f"cffi is missing: {sys.executable} -m pip install cffi") from None
    ffi = FFI()
    ffi.cdef(interface())
    ffi.set_source("caldrix._native", '#include "caldrix.h"\n')
    partial = target.with_suffix(".part.c")
    with contextlib.redirect_stdout(None):
        ffi.emit_c_code(str(partial))
    partial.replace(target)


def python_flags() -> list[str]:
    """Where Python.h is: Python's own, or ours, which serves every ordinary build of Python."""
    paths = sysconfig.get_paths()
    found = dict.fromkeys([paths["include"], paths["platinclude"]])
    if any((Path(path) / "Python.h").exists() for path in found):
        return [f"-I{path}" for path in found]
    if sysconfig.get_config_var("Py_GIL_DISABLED") or sysconfig.get_config_var("Py_DEBUG"):
        raise fail(f"Python.h is not in {paths['include']}: this build of Python needs its own")
    return [f"-I{ROOT / 'tools/limited_api'}", "-Werror=implicit-function-declaration"]


def read(record: Path) -> str:
    """The command line kept from the last build, or nothing."""
    return record.read_text(encoding="utf8") if record.exists() else ""


def is_current(target: Path, command: list[str]) -> bool:
    """Whether `target` was made by this very command from files that have not changed since."""
    record, depends = target.with_suffix(".cmd"), target.with_suffix(".d")
    if not target.exists() or not depends.exists() or read(record) != shlex.join(command):
        return False
    made = target.stat().st_mtime
    inputs = depends.read_text(encoding="utf8").split(":", 1)[1].replace("\\\n", " ")
    names = [name.replace("\\ ", " ") for name in re.split(r"(?<!\\)\s+", inputs.strip())]
    return all(Path(name).exists() and Path(name).stat().st_mtime <= made for name in names)


def compile_one(how: Setting, source: Path, flags: list[str], target: Path) -> Path:
    """Keeps the command beside the object, but not where there were warnings: they come again."""
    command = [*how.cc, *FLAGS, *how.extra, *flags, *INCLUDES, "-c", str(source)]
    if is_current(target, command):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    target.with_suffix(".cmd").unlink(missing_ok=True)
    depends = ["-MMD", "-MF", str(target.with_suffix(".d"))]
    errors = ["-Werror"] if how.werror else []
    if not run([*command, *errors, *depends, "-o", str(target)]):
        target.with_suffix(".cmd").write_text(shlex.join(command), encoding="utf8")
    return target


def run(command: list[str]) -> str:
    """What it printed, which is shown too."""
    done = subprocess.run(command, text=True, capture_output=True)
    printed = done.stdout + done.stderr
    sys.stderr.write(printed)
    if done.returncode:
        raise fail(f"{command[0]} failed: {shlex.join(command)}")
    return printed


def compile_all(how: Setting) -> list[Path]:
    jobs = [
        (path, [*WARNINGS, *flags], how.objects / path.relative_to(NATIVE).with_suffix(".o"))
        for path, flags in sources()
    ]
    module = how.objects / "module.c"
    how.objects.mkdir(parents=True, exist_ok=True)
    write_module(module)
    jobs.append((module, python_flags(), module.with_suffix(".o")))
    with ThreadPoolExecutor(
        len(os.sched_getaffinity(0)) if sys.platform == "linux" else None
    ) as pool:
        return list(pool.map(lambda job: compile_one(how, *job), jobs))


def build(how: Setting, target: Path) -> None:
    """Makes `target`, the module; nothing runs when nothing changed."""
    how.objects.mkdir(parents=True, exist_ok=True)
    with open(how.objects / "lock", "w", encoding="utf8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a test run and a check may build at once
        objects = compile_all(how)
        newest = max(path.stat().st_mtime for path in objects)
        record = how.objects / "link.cmd"
        shared = (
            ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
        )
        command = [*how.cc, *how.extra, *shared, "-pthread", *map(str, objects), "-lm", "-o"]
        asked = shlex.join([*command, str(target)])
        if target.exists() and target.stat().st_mtime >= newest and read(record) == asked:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".part")
        run([*command, str(partial)])
        partial.replace(target)  # a running program keeps the file it has mapped
        record.write_text(asked, encoding="utf8")


def shadow(directory: Path) -> Path:
    """A package directory whose files are links to caldrix/, for another build of the module."""
    package = directory / "caldrix"
    package.mkdir(parents=True, exist_ok=True)
    for path in package.iterdir():
        if path.is_symlink():
            path.unlink()
    for path in (ROOT / "caldrix").iterdir():
        if not path.name.startswith("_native") and path.name != "__pycache__":
            (package / path.name).symlink_to(path)
    return package


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds caldrix._native from native/.")
    parser.add_argument("--inplace", action="store_true", help="put the module into caldrix/")
    parser.add_argument(
        "--sanitize", default="", metavar="LIST", help="address,undefined or thread"
    )
    parser.add_argument("--werror", action="store_true", help="a warning is an error")
    arguments = parser.parse_args()
    how = setting(arguments.sanitize, arguments.werror)
    if arguments.inplace:
        package = ROOT / "caldrix"
    elif arguments.sanitize:
        package = shadow(ROOT / "build" / arguments.sanitize.replace(",", "-"))
    else:
        parser.error("takes --inplace, or --sanitize to build beside the checkout")
    build(how, package / module_name())


if __name__ == "__main__":
    main()

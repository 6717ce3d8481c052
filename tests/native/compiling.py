"""Compiles parts of native/ and C programs that check them, warnings being errors.

The installed extension is not used: what is built this way needs a compiler and nothing else.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import build_native

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["-std=c11", "-O3", "-ffp-contract=off", *build_native.WARNINGS, "-Werror"]


def compile_c(output: Path, sources: Sequence[str], flags: Sequence[str] = ()) -> Path:
    """Builds `output` of sources, named from the repository's root."""
    paths = [str(ROOT / source) for source in sources]
    command = [*build_native.setting().cc, *FLAGS, *build_native.INCLUDES, *flags, *paths]
    subprocess.run([*command, "-pthread", "-lm", "-o", str(output)], check=True)
    return output

"""What setuptools calls to build the extension of a wheel, an editable install or an sdist.

Hands the whole work to build_native.py and names the files that a source distribution needs for
it. pyproject.toml points here; knows nothing of compilers.
"""

import sys
from pathlib import Path

from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).resolve().parent))
import build_native

SHIPPED = ("Makefile", "native/**/*.[ch]", "tools/**/*", "tests/**/*.*", "docs/**/*.md")


class BuildExtension(build_ext):
    def build_extension(self, ext) -> None:
        build_native.build(build_native.setting(), Path(self.get_ext_fullpath(ext.name)).resolve())

    def get_source_files(self) -> list[str]:
        found = [path for pattern in SHIPPED for path in build_native.ROOT.glob(pattern)]
        found = [path for path in found if path.is_file() and "__pycache__" not in path.parts]
        return sorted(str(path.relative_to(build_native.ROOT)) for path in found)

# The compiled module, made by tools/build_native.py from native/include; native.py and
# native_files.py alone import it.
# cffi resolves its contents at run time, so they have no types here.
from typing import Any

ffi: Any
lib: Any

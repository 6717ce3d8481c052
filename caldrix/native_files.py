"""What the compiled library does with the bytes of model files: lists of strings.

Beside native.py, which says so where the library is missing. Knows no format.
"""

from caldrix.native import Buffer  # isort: skip  (before the extension)

from caldrix._native import ffi, lib


def walk_strings(
    data: Buffer, at: int, n: int, out: bytearray | None = None
) -> tuple[int, int, int]:
    """Walks up to `n` strings from data[at] on, each a u64 of its length and then its bytes, as far
    as they lie in `data` whole. With `out` copies each into it with a NUL behind, and stops before
    one that does not fit or that holds a NUL.

    Returns how many there were, where they end, and how many bytes of `out` they took.
    """
    walk = ffi.new("struct cx_strings *", {"at": at, "n": n})
    with ffi.from_buffer("char[]", data) as source:
        if out is None:
            lib.cx_strings_walk(source, len(source), walk, ffi.NULL, 0)
        else:
            with ffi.from_buffer("char[]", out) as target:
                lib.cx_strings_walk(source, len(source), walk, target, len(target))
    return walk.n, walk.at, walk.n_bytes

"""Python's cyclic collector while a model is loaded.

Nearly all that imports and a load make stays. To look through it again and again took a fifth of
the time to the first token; to look through it once more later would stall a reply.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Objects between two collections meanwhile; the vocabulary of a small model makes half as many.
THRESHOLD = 200_000


@contextmanager
def held_off() -> Iterator[None]:
    """Hardly collects inside, and never looks again at what is there at the end."""
    usual = gc.get_threshold()
    gc.set_threshold(THRESHOLD, *usual[1:])
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*usual)

"""The element types a tensor may have, as the native library lists them.

Owns no table: native/quant/quants.h is the only one, and a type added there is read here without
a change. Must not know which file format a type came from.
"""

from functools import cache

from caldrix import native

DType = native.QuantType


@cache
def all_types() -> tuple[DType, ...]:
    """Every type of the library, in its order."""
    return tuple(native.quant_types())


@cache
def _by_id() -> dict[int, DType]:
    return {dtype.id: dtype for dtype in all_types()}


@cache
def _by_name() -> dict[str, DType]:
    return {dtype.name: dtype for dtype in all_types()}


def by_id(type_id: int) -> DType | None:
    """The type with this number, or None where the library does not know it."""
    return _by_id().get(type_id)


@cache
def file_types() -> tuple[DType, ...]:
    """The types that a model's file may hold; the others are made at load."""
    own = native.ENUMS["CX_OWN_TYPES"]
    return tuple(dtype for dtype in all_types() if dtype.id < own)


def gguf_type(type_id: int) -> DType | None:
    """The type with this GGUF number, or None where no file may hold it."""
    found = by_id(type_id)
    return found if found in file_types() else None


def by_name(name: str) -> DType:
    """The type of this name (`f32`, `q4_k`), which our own code spells; KeyError for any other."""
    return _by_name()[name]


def names() -> str:
    """Every type that can be read, for a refusal: `F32, F16, Q8_0, ...`."""
    return ", ".join(dtype.name.upper() for dtype in file_types())

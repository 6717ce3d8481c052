"""The compiled library for Python: rows, quant types and a model to step.

It and native_files.py alone import the extension. Owns handles, buffers and turning a status code
into an exception; knows nothing of what is in a plan. Buffers of a step are made once a model,
since this code runs for every token.
"""

import contextlib
import mmap
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from caldrix.errors import EngineError, TooLargeError
from caldrix.units import format_size

try:
    from caldrix._native import ffi, lib
except ImportError as error:
    raise EngineError(
        f"the native library cannot be loaded ({str(error).partition(chr(10))[0]}); "
        "build it with: python tools/build_native.py --inplace"
    ) from error

Buffer = bytes | bytearray | memoryview | mmap.mmap | npt.NDArray[Any]
# Memory that a model holds on to. No memoryview: one in a cycle with the model is cleared by the
# collector while the model's export of it is alive, which ends the process.
Arena = bytes | bytearray | mmap.mmap | npt.NDArray[Any]
Indices = Sequence[int] | npt.NDArray[np.uint32]

# Every integer constant and enumerator of the headers, by its C name.
ENUMS: dict[str, int] = {
    name: value for name in dir(lib) if isinstance(value := getattr(lib, name), int)
}


class Cancelled(EngineError):
    """A step ended by `Model.cancel`; its rows hold nothing of use."""


@dataclass(frozen=True, slots=True)
class QuantType:
    """A type of weights; `id` is GGUF's number for it."""

    name: str
    id: int
    block_elements: int
    block_bytes: int
    takes_int8: bool = False  # whether its codes can be multiplied with int8 activations


BIAS = np.dtype([("token", np.uint32), ("value", np.float32)])  # struct cx_bias


@dataclass(frozen=True, slots=True)
class Adjust:
    """Changes of the scores before all else; see struct cx_adjust. `bias` is of BIAS, `generated`
    of uint32; both are read in place while the step runs. `forbidden` tokens are never picked."""

    bias: npt.NDArray[np.void] | None = None
    generated: Buffer | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    forbidden: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Scored:
    """What log-probabilities a row is to give: of one token, None for the one picked, and of the
    `n_top` most likely ones."""

    n_top: int = 0
    token: int | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to pick one token; the fields of struct cx_sampling."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    draw: int = 0
    recent: Sequence[int] = ()
    adjust: Adjust | None = None
    scored: Scored | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-softmax of one row's logits, for one token and, in descending order, for the most likely
    ones as (token, log-probability)."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Pick:
    """The token picked for one output row; not `finite` when its logits held NaN or infinity."""

    token: int
    finite: bool
    logprob: TokenLogprob | None = None


def all_rows() -> list[tuple[str, bool]]:
    """Every instruction-set row of this build, best first, and whether this processor has it."""
    return [
        (ffi.string(lib.cx_row_name(i)).decode(), bool(lib.cx_row_usable(i)))
        for i in range(lib.cx_row_count())
    ]


def rows() -> list[str]:
    """The rows this processor can run, best first."""
    return [name for name, usable in all_rows() if usable]


def quant_types() -> list[QuantType]:
    """Every type of weights of this build, in the order of its list."""
    types = []
    for i in range(lib.cx_quant_count()):
        info = lib.cx_quant_at(i)
        name = ffi.string(info.name).decode()
        takes_int8 = bool(lib.cx_quant_takes_int8(info.id))
        types.append(QuantType(name, info.id, info.block_elements, info.block_bytes, takes_int8))
    return types


def decode(
    type_id: int, buffer: Buffer, n_elements: int, row: str | None = None
) -> npt.NDArray[np.float32]:
    """`n_elements` values of a quant type as f32, by the plain decoder or by a row's."""
    info = lib.cx_quant_find(type_id)
    if info == ffi.NULL:
        raise EngineError(f"quant type {type_id!r} is not in the table")
    source = ffi.from_buffer("char[]", buffer)
    n_blocks, rest = divmod(n_elements, info.block_elements)
    if n_elements < 0 or rest or n_blocks * info.block_bytes > len(source):
        name = ffi.string(info.name).decode()
        raise EngineError(f"{n_elements} values of {name} do not fit {len(source)} bytes")
    result = np.empty(n_elements, np.float32)
    target = ffi.from_buffer("float[]", result, require_writable=True)
    if row is None:
        status = lib.cx_quant_decode(type_id, source, n_elements, target)
    else:
        status = lib.cx_quant_decode_row(row.encode(), type_id, source, n_elements, target)
    if status != lib.CX_OK:
        raise EngineError(f"row {row!r} cannot decode: takes one of {', '.join(rows())}")
    return result


def pack_planes(bf16: Buffer, planes: Buffer) -> bool:
    """Packs whole blocks of bf16 values without loss, while other threads run. False, with `planes`
    half written, where a block has too many odd exponents."""
    source = ffi.from_buffer("char[]", bf16)
    target = ffi.from_buffer("char[]", planes, require_writable=True)
    n_blocks, rest = divmod(len(source), 2 * lib.CX_PLANES_VALUES)
    if rest or len(target) != n_blocks * lib.CX_PLANES_BYTES:
        raise EngineError(f"{len(source)} bytes of bf16 are no planes of {len(target)} bytes")
    return bool(lib.cx_planes_pack(source, n_blocks, target) == lib.CX_OK)


def allocate(n_bytes: int) -> mmap.mmap:
    """Zeroed memory on a page boundary that costs nothing until it is touched."""
    try:
        memory = mmap.mmap(-1, max(n_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TooLargeError(
            f"cannot get {format_size(n_bytes)} of memory ({reason}); use a smaller --ctx or model"
        ) from None
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages has none to keep away
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


LIMITS = ("read", "fma", "int8")  # enum cx_limit


def measure_limit(
    name: str, buffer: Buffer, row: str, n_threads: int, seconds: float
) -> tuple[float, float, int]:
    """Seconds, bytes or operations, and checksum: see cx_limit_measure, also for what it takes."""
    source = ffi.from_buffer("char[]", buffer)
    result, error = ffi.new("struct cx_limit_result *"), ffi.new("struct cx_error *")
    status = lib.cx_limit_measure(
        row.encode(), LIMITS.index(name), n_threads, seconds, source, len(source), result, error
    )
    if status != lib.CX_OK:
        raise EngineError(ffi.string(error.message).decode("utf8", "replace"))
    return result.seconds, result.work, result.checksum


def pack_op(struct_name: str, fields: Mapping[str, Any]) -> bytes:
    """One record of a plan: the named struct of ops.h, padded with zeros to CX_OP_BYTES."""
    record = ffi.new(f"struct {struct_name} *", fields)
    return bytes(ffi.buffer(record)).ljust(ENUMS["CX_OP_BYTES"], b"\0")


class Model:
    """A checked plan with its memory and threads. One thread at a time may step it."""

    def __init__(
        self, plan: bytes, arenas: Sequence[Arena | None], row: str | None, n_threads: int
    ) -> None:
        # for life
        self._error = ffi.new("struct cx_error *")
        self._lock = threading.Lock()  # keeps cancel from meeting close
        writable = (lib.CX_ARENA_ACTIVATIONS, lib.CX_ARENA_KV)
        self._arenas = [
            None if arena is None else ffi.from_buffer("char[]", arena, i in writable)
            for i, arena in enumerate(arenas)
        ]
        self._model = self._open(plan, row, n_threads)
        head = ffi.cast("struct cx_plan_head *", ffi.from_buffer(plan))
        self._max_rows, self._max_out = head.max_rows, head.max_out
        self._vocab = head.vocab

        # for one step, made once
        self._rows = np.zeros((4, self._max_rows), np.uint32)
        self._picks = np.zeros(self._max_out, np.uint32)
        self._pick_status = np.zeros(self._max_out, np.uint8)
        self._sampling = ffi.new("struct cx_sampling[]", self._max_out)
        self._recent = np.zeros(64 * self._max_out, np.uint32)  # grows when more is asked for
        self._adjusts = ffi.new("struct cx_adjust[]", self._max_out)
        self._masks: npt.NDArray[np.uint32] | None = None  # made when one is asked for
        self._logprobs = ffi.new("struct cx_logprobs[]", self._max_out)
        self._step = ffi.new("struct cx_step *")
        for name, array in zip(
            ("tokens", "positions", "slots", "out_rows"), self._rows, strict=True
        ):
            setattr(self._step, name, ffi.from_buffer("uint32_t[]", array))
        self._step.picks = ffi.from_buffer("uint32_t[]", self._picks)
        self._step.pick_status = ffi.from_buffer("uint8_t[]", self._pick_status)

    def _open(self, plan: bytes, row: str | None, n_threads: int) -> Any:
        arenas = ffi.new("struct cx_arena[]", len(self._arenas))
        for arena, buffer in zip(arenas, self._arenas, strict=True):
            if buffer is not None:
                arena.base, arena.size = buffer, len(buffer)
        name = ffi.NULL if row is None else ffi.new("char[]", row.encode())
        options = ffi.new("struct cx_options *", {"row": name, "n_threads": n_threads})
        out = ffi.new("struct cx_model **")
        status = lib.cx_model_new(plan, len(plan), arenas, len(arenas), options, out, self._error)
        self._check(status)
        return ffi.gc(out[0], lib.cx_model_free)

    def _check(self, status: int) -> None:
        if status == lib.CX_OK:
            return
        message = ffi.string(self._error.message).decode("utf8", "replace")
        raise (Cancelled if status == lib.CX_ECANCELLED else EngineError)(message)

    def step(
        self,
        tokens: Indices,
        positions: Indices,
        slots: Indices,
        out_rows: Indices,
        sampling: Sequence[Sampling] | None,
    ) -> list[Pick]:
        """Runs the plan on these rows; with `sampling`, one entry an output row, picks tokens.

        Row i is tokens[i] at positions[i] of slots[i]; out_rows are ascending indices of rows whose
        logits are wanted and stay until the next step. Raises Cancelled after `cancel`, and
        EngineError for what does not check, before anything runs.
        """
        model, step = self._model, self._step
        if model is None:
            raise EngineError("the model is closed")
        n_rows, n_out = len(tokens), len(out_rows)
        if not n_rows == len(positions) == len(slots):
            raise EngineError(f"a step of {n_rows} tokens takes as many positions and slots")
        if n_rows > self._max_rows or n_out > self._max_out:
            raise EngineError(
                f"a step of {n_rows} rows and {n_out} outputs: "
                f"the plan takes {self._max_rows} and {self._max_out}"
            )
        rows = self._rows
        rows[0, :n_rows] = tokens
        rows[1, :n_rows] = positions
        rows[2, :n_rows] = slots
        rows[3, :n_out] = out_rows
        step.n_rows, step.n_out = n_rows, n_out
        step.sampling, step.logprobs = ffi.NULL, ffi.NULL
        if sampling is not None:
            self._fill_sampling(sampling, n_out)
        status = lib.cx_model_step(model, step, self._error)
        if status:
            self._check(status)
        if sampling is None:
            return []
        picked, odd = self._picks[:n_out].tolist(), self._pick_status[:n_out].tolist()
        if step.logprobs:
            read = map(self._read_logprob, range(n_out))
            return [Pick(t, not bad, p) for t, bad, p in zip(picked, odd, read, strict=True)]
        return [Pick(token, not bad) for token, bad in zip(picked, odd, strict=True)]

    def _fill_sampling(self, sampling: Sequence[Sampling], n_out: int) -> None:
        if len(sampling) != n_out:
            raise EngineError(f"{len(sampling)} samplings for {n_out} output rows")
        n_recent = sum(len(wanted.recent) for wanted in sampling)
        if n_recent > len(self._recent):
            self._recent = np.zeros(2 * n_recent, np.uint32)
        base, used, scores = ffi.from_buffer("uint32_t[]", self._recent), 0, False
        for i, wanted in enumerate(sampling):
            entry, n = self._sampling[i], len(wanted.recent)
            entry.temperature = wanted.temperature
            entry.top_k = wanted.top_k
            entry.top_p = wanted.top_p
            entry.min_p = wanted.min_p
            entry.repetition_penalty = wanted.repetition_penalty
            entry.seed = wanted.seed
            entry.draw = wanted.draw
            entry.n_recent = n
            entry.recent = base + used
            self._recent[used : used + n] = wanted.recent
            used += n
            adjust = wanted.adjust
            entry.adjust = ffi.NULL if adjust is None else self._fill_adjust(i, adjust)
            if wanted.scored is not None:
                scores = True
        self._step.sampling = self._sampling
        if scores:
            self._fill_scored(sampling)

    def _fill_adjust(self, i: int, wanted: Adjust) -> Any:
        """The arrays are the caller's, who holds them until the step is over."""
        entry, bias, generated = self._adjusts + i, wanted.bias, wanted.generated
        entry.presence_penalty = wanted.presence_penalty
        entry.frequency_penalty = wanted.frequency_penalty
        entry.n_bias = 0 if bias is None else len(bias)
        entry.bias = ffi.NULL if bias is None else ffi.from_buffer("struct cx_bias[]", bias)
        tokens = None if generated is None else ffi.from_buffer("uint32_t[]", generated)
        entry.n_generated = 0 if tokens is None else len(tokens)
        entry.generated = ffi.NULL if tokens is None else tokens
        entry.allowed = self._mask(i, wanted.forbidden) if wanted.forbidden else ffi.NULL
        return entry

    def _mask(self, i: int, forbidden: Sequence[int]) -> Any:
        """All tokens but these; ids that the vocabulary does not have forbid nothing."""
        if self._masks is None:
            self._masks = np.empty((self._max_out, -(-self._vocab // 32)), np.uint32)
        mask = self._masks[i]
        mask.fill(2**32 - 1)
        for token in forbidden:
            if 0 <= token < self._vocab:
                mask[token // 32] &= np.uint32(~(1 << token % 32) % 2**32)
        return ffi.from_buffer("uint32_t[]", mask)

    def _fill_scored(self, sampling: Sequence[Sampling]) -> None:
        for i, wanted in enumerate(sampling):
            entry, scored = self._logprobs[i], wanted.scored
            entry.wanted = scored is not None
            if scored is not None:
                entry.n_top = scored.n_top
                entry.token = lib.CX_PICKED_TOKEN if scored.token is None else scored.token
        self._step.logprobs = self._logprobs

    def _read_logprob(self, i: int) -> TokenLogprob | None:
        row = self._logprobs[i]
        if not row.wanted:
            return None
        tokens, values = list(row.top_tokens[0 : row.n_top]), list(row.top_logprobs[0 : row.n_top])
        return TokenLogprob(row.token, row.logprob, list(zip(tokens, values, strict=True)))

    def cancel(self) -> None:
        """From any thread: the running step raises Cancelled at its next op; else no effect."""
        with self._lock:
            if self._model is not None:
                lib.cx_model_cancel(self._model)

    def close(self) -> None:
        """Ends the threads and lets go of the arenas; not while a step runs."""
        with self._lock:
            if self._model is None:
                return
            ffi.release(self._model)
            self._model = None
            for arena in self._arenas:
                if arena is not None:
                    ffi.release(arena)
            self._arenas = []

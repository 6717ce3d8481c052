"""From files to a model that can be stepped and spoken to: where formats, text and compile meet.

Takes a directory with config.json or a path to a GGUF file. Decides the type and the context; says
what it does through `status`. Everything that can be refused is refused before memory is allocated.
"""

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from caldrix import models, native
from caldrix.compile.memory import memory_limit
from caldrix.compile.packing import Packing, most_bytes
from caldrix.compile.program import (
    MAX_OUT,
    MAX_ROWS,
    CompileOptions,
    Program,
    Source,
    check_weights,
    compile_model,
    files_bytes,
    tensors_to_pack,
)
from caldrix.engine.threads import default_threads
from caldrix.errors import EngineError, RefusedError, TooLargeError
from caldrix.formats.checkpoint import Checkpoint
from caldrix.formats.config_file import read_json
from caldrix.formats.dtypes import all_types
from caldrix.formats.gguf import Gguf, open_gguf
from caldrix.log import escape
from caldrix.models import names
from caldrix.models.config import DecoderConfig, Fields
from caldrix.models.graph import Graph
from caldrix.text.chat_template import (
    ChatTemplate,
    chat_template_from_gguf,
    load_chat_template,
)
from caldrix.text.gguf_tokenizer import tokenizer_from_gguf
from caldrix.text.infill import InfillTokens, infill_tokens, infill_tokens_of_gguf
from caldrix.text.tokenizer import Tokenizer, load_tokenizer
from caldrix.text.tokenizer_limits import max_merges
from caldrix.units import format_seconds, format_size

Status = Callable[[str], None]
FLOAT_TYPES = ("f32", "f16", "bf16")
DEFAULT_CONTEXT = 2048
# What a tokenizer takes, roughly: a vocabulary of 49152 measured 38 MB.
TEXT_BYTES = 8_000_000
TOKEN_BYTES = 800


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """None means: the type by the model, DEFAULT_CONTEXT or what the model has if that is less, the
    threads by the machine, the best row, the name of the directory or file."""

    dtype: str | None = None
    max_context: int | None = None
    n_slots: int = 1
    threads: int | None = None
    cpu_isa: str | None = None
    activations: str = "f32"
    max_out: int = MAX_OUT
    max_rows: int = MAX_ROWS
    name: str | None = None
    revision: str | None = None  # of the model's source, to be shown
    weight_codec: str = "raw"  # or "planes": bf16 matrices in a fifth less memory, the same bits
    layout_dir: Path | None = None  # where planes are kept for the next load; None: nowhere


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A compiled model with its text side. `name` is what the options said, else the base name;
    `infill` is None where the vocabulary has no tokens for filling in the middle."""

    program: Program
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    eos_token_ids: frozenset[int]
    name: str
    context: int
    infill: InfillTokens | None = None
    n_params: int = 0
    revision: str | None = None


_Text = tuple[Tokenizer, ChatTemplate | None, InfillTokens | None]


@dataclass(frozen=True, slots=True)
class _Parts:
    """What either kind of model is taken apart into, before anything is compiled."""

    config: DecoderConfig
    graph: Graph
    source: Source
    rope_divisors: npt.NDArray[np.float32] | None
    eos_token_ids: frozenset[int]
    text: Callable[[Status], _Text]


def load_model(path: Path, options: LoadOptions, status: Status) -> LoadedModel:
    """Opens, checks and compiles `path`. Raises RefusedError, NotFoundError or TooLargeError."""
    started = time.monotonic()
    parts = _open(path)
    _check_room(parts, options)
    tokenizer, chat_template, infill = parts.text(status)
    _check_vocabulary(tokenizer, parts.config, parts.source.where)
    program = _compile(parts, options, status)
    eos = parts.eos_token_ids
    if not eos and tokenizer.eos_id is not None:
        eos = frozenset({tokenizer.eos_id})
    used = program.options
    name = options.name or (path.stem if path.is_file() else path.name)
    if used.activations == "int8" and not program.has_int8:
        status(
            f"--activations int8 changes nothing: {name} has no linear layer whose weights are all"
            f" of types that take it ({', '.join(t.name for t in all_types() if t.takes_int8)})"
        )
    context = f"context {program.context}"
    if used.n_slots > 1:
        context += f" for each of {used.n_slots}"
    status(
        f"compiled {name} in {format_seconds(time.monotonic() - started)}:"
        f" {parts.config.model_type}, {format_size(program.sizes.mapped)} of weights,"
        f" {used.dtype}, {context}, cpu {used.cpu_isa}, {used.threads} thread(s)"
    )
    return LoadedModel(
        program,
        tokenizer,
        chat_template,
        eos,
        name,
        program.context,
        infill,
        _n_params(parts.graph),
        options.revision,
    )


def _n_params(graph: Graph) -> int:
    """Numbers in the weights; those that two parts share count once."""
    return sum(math.prod(weight.shape) for weight in graph.weights())


def load_program(path: Path, options: LoadOptions) -> Program:
    """The weights alone, for those who bring token ids of their own: no tokenizer is read."""
    return _compile(_open(path), options, lambda message: None)


def _open(path: Path) -> _Parts:
    """The parts of a model whose weights are known to be all there: what is read next, text and
    all, is bounded by them."""
    parts = _open_directory(path) if os.path.isdir(path) else _open_gguf(path)
    check_weights(parts.graph, parts.source)
    return parts


def _compile(parts: _Parts, options: LoadOptions, status: Status) -> Program:
    config, where = parts.config, parts.source.where
    context = _context(options.max_context, config, where)
    max_rows = min(options.max_rows, context * options.n_slots)
    compile_options = CompileOptions(
        dtype=_dtype(options.dtype, parts.source.checkpoint, where),
        context=context,
        n_slots=options.n_slots,
        threads=options.threads or default_threads(),
        cpu_isa=options.cpu_isa or _best_row(),
        activations=options.activations,
        max_out=min(options.max_out, max_rows),
        max_rows=max_rows,
    )
    packing = Packing(options.layout_dir, status) if options.weight_codec == "planes" else None
    return compile_model(
        parts.graph, parts.source, config.rope, parts.rope_divisors, compile_options, packing
    )


def _best_row() -> str:
    rows = native.rows()
    if not rows:
        built = ", ".join(name for name, _ in native.all_rows()) or "none"
        raise EngineError(f"this processor can run no row of this build ({built})")
    return rows[0]


def check_config(path: Path, options: LoadOptions) -> None:
    """Refuses by its config.json alone, before the weights are there, what could not be loaded."""
    _, _, config = _read_config(path)
    _context(options.max_context, config, escape(str(path)))


def _read_config(path: Path) -> tuple[dict[str, object], models.Family, DecoderConfig]:
    values = read_json(path)
    where = escape(str(path))
    family = models.family_of_hf(values, where)
    config = family.config_from_hf(values, where)
    _refuse_quantization(values, where)
    return values, family, config


def _open_directory(path: Path) -> _Parts:
    values, family, config = _read_config(path / "config.json")
    from caldrix.formats.safetensors import open_safetensors

    checkpoint = open_safetensors(path)

    def text(status: Status) -> _Text:
        tokenizer = load_tokenizer(path, config.vocab_size)
        return tokenizer, load_chat_template(path), infill_tokens(tokenizer)

    return _Parts(
        config,
        family.build(config),
        Source(checkpoint, lambda name: name, names.IGNORED_HF, escape(str(path))),
        None,
        _eos_of_directory(path, values),
        text,
    )


def _refuse_quantization(values: Mapping[str, object], where: str) -> None:
    if values.get("quantization_config"):
        raise RefusedError(
            f"{where}: quantization_config: quantised safetensors are not supported;"
            f" use a GGUF file"
        )


def _eos_of_directory(path: Path, values: Mapping[str, object]) -> frozenset[int]:
    """The union of config.json's and generation_config.json's eos_token_id."""
    found = Fields(values, str(path / "config.json")).token_ids("eos_token_id")
    generation = path / "generation_config.json"
    if os.path.isfile(generation):
        found |= Fields(read_json(generation), str(generation)).token_ids("eos_token_id")
    return found


def _open_gguf(path: Path) -> _Parts:
    gguf = open_gguf(path)
    where = escape(str(path))
    family = models.family_of_gguf(gguf.metadata, where)
    shapes = {name: tensor.shape for name, tensor in gguf.checkpoint.tensors.items()}
    config = family.config_from_gguf(gguf.metadata, shapes, where)

    def text(status: Status) -> _Text:
        _check_lists(gguf, config, where)
        tokenizer = tokenizer_from_gguf(gguf.metadata, where, status)
        infill = infill_tokens_of_gguf(tokenizer, gguf.metadata, where)
        return tokenizer, chat_template_from_gguf(gguf.metadata, where), infill

    f = Fields(gguf.metadata, where, "tokenizer.ggml.")
    eos = frozenset[int]().union(*(f.token_ids(n) for n in ("eos_token_id", "eot_token_id")))
    return _Parts(
        config,
        family.build(config),
        Source(gguf.checkpoint, names.gguf_name, names.IGNORED_GGUF, where),
        _rope_divisors(gguf, config, where),
        eos,
        text,
    )


def _check_lists(gguf: Gguf, config: DecoderConfig, where: str) -> None:
    """Before they are decoded: the tokenizer's lists are no longer than the model's vocabulary
    needs."""
    for name in ("tokens", "scores", "token_type", "merges"):
        count = gguf.metadata.count("tokenizer.ggml." + name)
        most = max_merges(config.vocab_size) if name == "merges" else config.vocab_size
        if count > most:
            raise RefusedError(
                f"{where}: tokenizer.ggml.{name} has {count} entries;"
                f" a model of {config.vocab_size} tokens has up to {most}"
            )


def _rope_divisors(gguf: Gguf, config: DecoderConfig, where: str) -> npt.NDArray[np.float32] | None:
    """Llama 3.1 scaling in GGUF: rope_freqs.weight, one divisor for each inverse frequency."""
    tensor = gguf.checkpoint.tensors.get("rope_freqs.weight")
    if tensor is None:
        return None
    wanted = (config.rope.dim // 2,)
    if tensor.shape != wanted:
        raise RefusedError(
            f"{where}: tensor 'rope_freqs.weight' has shape {list(tensor.shape)};"
            f" the model needs {list(wanted)}"
        )
    divisors = tensor.to_f32()
    if not (np.isfinite(divisors).all() and (divisors > 0).all()):
        raise RefusedError(f"{where}: tensor 'rope_freqs.weight' holds a value that is not above 0")
    return divisors


def _dtype(wanted: str | None, checkpoint: Checkpoint, where: str) -> str:
    """bf16 unless asked otherwise; f32 for quantised weights, which refuse bf16."""
    quantised = next(
        (t for t in checkpoint.tensors.values() if t.dtype.name not in FLOAT_TYPES), None
    )
    if quantised is None:
        return wanted or "bf16"
    if wanted == "bf16":
        raise RefusedError(
            f"{where}: --dtype bf16: quantized weights ({quantised.dtype.name}) run at f32;"
            f" use --dtype f32"
        )
    return "f32"


def _context(wanted: int | None, config: DecoderConfig, where: str) -> int:
    limit = config.max_position_embeddings
    if wanted is None:
        return min(DEFAULT_CONTEXT, limit)
    if wanted > limit:
        raise TooLargeError(
            f"--ctx {wanted}: {where} was trained for {limit} positions; use {limit} or less"
        )
    return wanted


def _check_room(parts: _Parts, options: LoadOptions) -> None:
    """The tokenizers library ends the whole process where it gets no memory: refuse before it."""
    source, packed = parts.source, []
    if options.weight_codec == "planes":
        dtype = _dtype(options.dtype, source.checkpoint, source.where)
        packed = tensors_to_pack(parts.graph, source, dtype)
    files = files_bytes(source.checkpoint, packed)
    weights = files + (most_bytes(packed) if packed else 0)
    text = TEXT_BYTES + TOKEN_BYTES * parts.config.vocab_size
    limit = memory_limit(files)
    if limit is not None and weights + text > limit:
        raise TooLargeError(
            f"{source.where}: needs {format_size(weights + text)} ({format_size(weights)} of"
            f" weights) without its cache; this process may use {format_size(limit)};"
            " use a smaller model"
        )


def _check_vocabulary(tokenizer: Tokenizer, config: DecoderConfig, where: str) -> None:
    if tokenizer.n_tokens > config.vocab_size:  # a single id past the end is refused in its prompt
        raise RefusedError(
            f"{where}: the tokenizer has {tokenizer.n_tokens} tokens,"
            f" the model only {config.vocab_size}"
        )

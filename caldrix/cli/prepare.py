"""From a checked command line to a loaded model: everything refusable first, then fetch, then
compile.

Owns that order and the files a command line names beside the model (the system text, images). Knows
nothing of answers. Files already on this machine load without the Hub libraries.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from caldrix import log
from caldrix.cli.collector import held_off
from caldrix.cli.parse import CommandLine
from caldrix.errors import CaldrixError, RefusedError, UsageError, printable
from caldrix.storage import cache_directory

if TYPE_CHECKING:
    from caldrix.engine.load import LoadedModel, LoadOptions
    from caldrix.hub.resolve import ModelReference
    from caldrix.image.decode import Image

MAX_SYSTEM_BYTES = 4 * 2**20
TEXT_ONLY = "takes text only; -i and /image need a vision model"


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the command line brings beside the model, read and checked."""

    prompt: str | None
    system: str | None
    images: "tuple[Image, ...]"


def read_inputs(line: CommandLine) -> Inputs:
    prompt, system = line["prompt"], line["system"]
    return Inputs(
        None if prompt is None else whole_text(prompt),
        None if system is None else read_system(system, "--system"),
        tuple(_read_image(path) for path in line["image"]),
    )


@held_off()
def load(line: CommandLine, lane: str) -> "LoadedModel":
    """Fetches what is not here and compiles; its name is the one that the user knows it by."""
    path, options = find(line, lane)
    from caldrix.engine.load import load_model

    return load_model(path, options, log.status)


def find(line: CommandLine, lane: str) -> "tuple[Path, LoadOptions]":
    """The model's files, fetched where they are not here, and how they are to be loaded."""
    from caldrix.hub.resolve import parse_model

    reference = parse_model(line.model)
    if line["backend"] == "auto":
        log.status(f"backend {lane} (auto; `caldrix doctor` shows why)")
    if line["draft_model"] is not None:
        log.status(
            f"the draft model {printable(line['draft_model'])} is not used: "
            "this version does not speculate; the reply is the same without it"
        )
    options = load_options(line, line["served_name"] or reference.served_name)
    path = reference.path
    if path is None:
        from caldrix.hub.fetch import revision_of

        path = fetch_model(reference, options)
        options = replace(options, revision=revision_of(reference, path))
    check_budget(line["weight_budget"], path)
    return path, options


def fetch_model(reference: "ModelReference", options: "LoadOptions") -> Path:
    """The model's files; one that could not be loaded is refused before its weights are fetched."""
    from caldrix.cli.interrupts import raising
    from caldrix.hub.fetch import fetch

    def judge(config: Path) -> None:
        from caldrix.engine.load import check_config

        check_config(config, options)

    with raising():
        return fetch(reference, log.status, judge)


def load_options(line: CommandLine, name: str) -> "LoadOptions":
    from caldrix.compile.program import MAX_OUT
    from caldrix.engine.load import LoadOptions

    # Under a budget the codec is that of streamed weights, and this version streams none.
    packs = line["weight_codec"] == "planes" and line["weight_budget"] is None
    return LoadOptions(
        dtype=line["dtype"],
        max_context=line["max_context"],
        threads=line["threads"],
        cpu_isa=line["cpu_isa"],
        activations=line["activations"],
        n_slots=line.values.get("parallel", 1),
        max_out=MAX_OUT if line.command == "serve" else 1,  # one conversation, one token at a time
        name=name,
        weight_codec="planes" if packs else "raw",
        layout_dir=_layout_dir(line["layout_dir"]) if packs else None,
    )


def _layout_dir(given: str | None) -> Path | None:
    """--layout-dir, else a place in the cache; None where there is no home directory for one."""
    if given is not None:
        return Path(given)
    try:
        return cache_directory() / "layout"
    except RefusedError as error:
        log.status(f"--weight-codec planes: kept in memory only: {error}")
        return None


def check_budget(budget: int | None, path: Path) -> None:
    """A budget that holds every weight is kept by holding them; less would need streaming."""
    if budget is None:
        return
    from caldrix.units import format_size

    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files)
    if size > budget:
        raise RefusedError(
            f"--weight-budget {budget}: the weights take {format_size(size)} and this version "
            "holds them all; leave the flag out or give at least as much"
        )
    log.status(f"--weight-budget {budget} holds all the weights ({format_size(size)})")


def whole_text(text: str) -> str:
    """A command line's text, its undecodable bytes as U+FFFD."""
    return text.encode("utf8", "surrogateescape").decode("utf8", "replace")


def read_system(value: str, flag: str) -> str:
    """TEXT, or the text of @FILE without a last line break."""
    if not value.startswith("@"):
        return whole_text(value)
    path = value[1:]
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_SYSTEM_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{flag} @{path}: {_reason(error)}") from None
    if len(data) > MAX_SYSTEM_BYTES:
        raise UsageError(f"{flag} @{path}: the file is over 4 MiB")
    return data.decode("utf8", "replace").removesuffix("\n").removesuffix("\r")


def _read_image(path: str) -> "Image":
    from caldrix.image.decode import MAX_BYTES, check_image

    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        return check_image(path, data)
    except (OSError, ValueError) as error:
        raise UsageError(f"-i {path}: {_reason(error)}") from None
    except CaldrixError as error:
        raise UsageError(f"-i: {error}") from None


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)

"""The six sampling settings between the command line, the chat's commands and the engine.

Owns the one conversion from values by flag key to SamplingParams. Ranges are checked by the flags'
kinds.
"""

from typing import TYPE_CHECKING, Any

from caldrix.cli.flags import BY_NAME, SAMPLING
from caldrix.cli.parse import CommandLine

if TYPE_CHECKING:
    from caldrix.engine.sequence import SamplingParams


def sampling_values(line: CommandLine) -> dict[str, Any]:
    keys = [BY_NAME[name].key for name in SAMPLING]
    return {key: line[key] for key in keys}


def sampling_params(values: dict[str, Any]) -> "SamplingParams":
    from caldrix.engine.sequence import SamplingParams

    return SamplingParams(**values)

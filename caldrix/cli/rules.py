"""What flags say together, and what a lane allows: checked before any download.

Owns every rule that one flag's value alone cannot settle, and the choice of the lane. The flags
themselves are rows of cli/flags.py. The compiled library is loaded only to check --cpu-isa.
"""

from caldrix.cli.flags import BY_NAME, FLAGS, MAX_IMAGES
from caldrix.cli.parse import CommandLine
from caldrix.errors import RefusedError, UsageError, printable

LANES = ("metal", "hip", "cpu")  # in the order that --backend auto tries them
USABLE = ("cpu",)  # the lanes this version has a runtime for


def check(line: CommandLine) -> str:
    """Refuses what does not go together; returns the lane."""
    _check_images(line)
    _check_companions(line)
    if line["device_sample_offset"] >= line["device_sample_period"]:
        raise RefusedError(
            f"--device-sample-offset {line['device_sample_offset']}: takes a step below "
            f"--device-sample-period, which is {line['device_sample_period']}"
        )
    lane = choose_lane(line["backend"])
    _check_lane(line, lane)
    return lane


def choose_lane(backend: str) -> str:
    if backend == "auto":
        return next(lane for lane in LANES if lane in USABLE)
    if backend not in USABLE:
        raise RefusedError(
            f"--backend {backend}: this version has no {backend} lane; use --backend cpu"
        )
    return backend


def _check_images(line: CommandLine) -> None:
    if "image" not in line.values:
        return
    if len(line["image"]) > MAX_IMAGES:
        raise UsageError(
            f"-i given {len(line['image'])} times: at most {MAX_IMAGES} images a conversation"
        )
    if line["image"] and line["raw"]:
        raise UsageError("-i with --raw: an image needs the chat template that --raw leaves out")


def _check_companions(line: CommandLine) -> None:
    """Flags that mean something only beside another."""
    for flag in FLAGS:
        if flag.needs and flag.name in line.given and flag.needs not in line.given:
            serves = line.command in BY_NAME[flag.needs].commands
            where = "" if serves else " of caldrix serve"
            raise RefusedError(f"{flag.name} has a meaning only with {flag.needs}{where}")
    has_layout = line["weight_codec"] == "planes" or "--weight-budget" in line.given
    if "--layout-dir" in line.given and not has_layout:
        raise RefusedError(
            "--layout-dir has a meaning only with --weight-codec planes or --weight-budget"
        )
    if "--admin" in line.given and "--admin-port" not in line.given:
        raise RefusedError("--admin needs --admin-port")


def _check_lane(line: CommandLine, lane: str) -> None:
    for flag in FLAGS:
        if not flag.lanes or flag.name not in line.given or lane in flag.lanes.split():
            continue
        value = line[flag.key]
        if value != flag.default:
            raise RefusedError(
                f"{flag.name} {value}: belongs to the {flag.lanes} lane; the {lane} lane takes "
                f"{flag.default} only"
            )
    if "--admin" in line.given and lane == "cpu":
        raise RefusedError("--admin: the cpu lane cannot swap variants; leave it out")
    if line["cpu_isa"] is not None:
        _check_row(line["cpu_isa"])


def _check_row(row: str) -> None:
    """A row must be one this build has and this processor can run."""
    from caldrix import native

    known = dict(native.all_rows())
    usable = [name for name, can in known.items() if can]
    if row not in known:
        raise RefusedError(f"--cpu-isa {printable(row)}: takes one of {', '.join(known)}")
    if not known[row]:
        raise RefusedError(
            f"--cpu-isa {row}: this processor stops below it; the best it runs is {usable[0]}"
        )

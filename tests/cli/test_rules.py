"""What flags say together: the lane, the companions, the images."""

import pytest
from test_parse import GOOD

from caldrix import native
from caldrix.cli.flags import FLAGS, Flag
from caldrix.cli.parse import parse
from caldrix.cli.rules import check
from caldrix.errors import CaldrixError, RefusedError, UsageError

ACCEPTED = [
    [],
    ["--backend", "auto"],
    ["--backend", "cpu", "--batch-gemv", "rows", "--sampler", "device", "--max-batch", "1"],
    ["--weight-budget", "5g", "--weight-ring", "3", "--layout-dir", "x"],
    ["--weight-budget", "5g", "--weight-codec", "raw", "--layout-dir", "x"],
    ["--weight-codec", "raw"],
    ["--weight-codec", "planes", "--layout-dir", "x"],
    ["--device-sample-period", "2", "--device-sample-offset", "1"],
]
REFUSED = [  # (arguments, exit status, words of the reason)
    (["--backend", "hip"], 1, "--backend hip"),
    (["--backend", "metal"], 1, "--backend metal"),
    (["--max-batch", "8"], 1, "--max-batch 8"),
    (["--prefill-grid", "on"], 1, "--prefill-grid on"),
    (["--batch-gemv", "x2"], 1, "--batch-gemv x2"),
    (["--prefill-attention", "tiles"], 1, "--prefill-attention tiles"),
    (["--batch-attention", "grouped"], 1, "--batch-attention grouped"),
    (["--sampler", "host"], 1, "--sampler host"),
    (["--device-sample-offset", "8"], 1, "--device-sample-offset 8"),
    (["--device-sample-period", "4"], 1, "--device-sample-period"),
    (["--layout-dir", "x"], 1, "--layout-dir has a meaning only with --weight-codec planes or"),
    (["--layout-dir", "x", "--weight-codec", "raw"], 1, "--layout-dir has a meaning only with"),
    (["-i", "a", "--raw"], 2, "--raw"),
    (["-i", "a"] * 9, 2, "at most 8"),
]
REFUSED_ON_SERVE = [
    (["--admin"], 1, "--admin-port"),
    (["--admin", "--admin-port", "0"], 1, "--admin"),
]


def refusal(command: str, arguments: list[str]) -> CaldrixError:
    with pytest.raises(CaldrixError) as caught:
        check(parse(command, ["m", *arguments]))
    return caught.value


@pytest.mark.parametrize("arguments", ACCEPTED)
def test_accepted_flags_choose_the_cpu_lane(arguments: list[str]) -> None:
    assert check(parse("run", ["m", *arguments])) == "cpu"


@pytest.mark.parametrize(("arguments", "status", "words"), REFUSED)
def test_refused_together(arguments: list[str], status: int, words: str) -> None:
    error = refusal("run", arguments)
    assert error.exit_status == status
    assert words in str(error)


@pytest.mark.parametrize(("arguments", "status", "words"), REFUSED_ON_SERVE)
def test_refused_by_serve(arguments: list[str], status: int, words: str) -> None:
    error = refusal("serve", arguments)
    assert error.exit_status == status
    assert words in str(error)


@pytest.mark.parametrize("flag", [f for f in FLAGS if f.needs], ids=lambda flag: flag.name)
def test_a_flag_that_goes_with_another_is_refused_alone(flag: Flag) -> None:
    arguments = [flag.name, GOOD[flag.name][0]]
    for command in flag.commands:
        error = refusal(command, arguments)
        assert type(error) is RefusedError
        assert str(error).startswith(f"{flag.name} has a meaning only with {flag.needs}")


def test_a_row_must_exist_and_be_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("x86-64-v4", False), ("x86-64-v3", True), ("x86-64-v2", True)]
    monkeypatch.setattr(native, "all_rows", lambda: rows)
    assert check(parse("run", ["m", "--cpu-isa", "x86-64-v2"])) == "cpu"
    above = refusal("run", ["--cpu-isa", "x86-64-v4"])
    assert isinstance(above, RefusedError)
    assert "x86-64-v3" in str(above)
    unknown = refusal("run", ["--cpu-isa", "x86-64-v9"])
    assert isinstance(unknown, RefusedError)
    assert not isinstance(unknown, UsageError)
    assert "x86-64-v4, x86-64-v3, x86-64-v2" in str(unknown)

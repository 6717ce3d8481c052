"""Command lines, accepted and refused: every row of the flag table, every way to write a flag."""

import pytest

from caldrix.cli.flags import BY_NAME, FLAGS, Flag
from caldrix.cli.parse import parse
from caldrix.engine.load import DEFAULT_CONTEXT
from caldrix.errors import CaldrixError, RefusedError, UsageError

GOOD = {  # flag -> (as typed, the value)
    "--prompt": ("-5 degrees", "-5 degrees"),
    "--image": ("a.png", ("a.png",)),
    "--system": ("@file", "@file"),
    "--max-tokens": ("1", 1),
    "--lengths": ("8, 16,512", (8, 16, 512)),
    "--depths": ("1", (1,)),
    "--steps": ("64", 64),
    "--rounds": ("1", 1),
    "--json": ("-", "-"),
    "--max-context": ("256", 256),
    "--backend": ("cpu", "cpu"),
    "--draft-model": ("x", "x"),
    "--temperature": ("1e-12", 1e-12),
    "--top-k": ("40", 40),
    "--top-p": ("1", 1.0),
    "--min-p": (".5", 0.5),
    "--repetition-penalty": ("1.1", 1.1),
    "--seed": ("-9223372036854775808", -(2**63)),
    "--port": ("0", 0),
    "--host": ("::1", "::1"),
    "--served-name": ("n", "n"),
    "--dtype": ("bf16", "bf16"),
    "--activations": ("int8", "int8"),
    "--queue-depth": ("0", 0),
    "--max-batch": ("8", 8),
    "--parallel": ("16", 16),
    "--admission": ("one", "one"),
    "--prefill-grid": ("on", "on"),
    "--threads": ("+2", 2),
    "--cpu-isa": ("x86-64-v2", "x86-64-v2"),
    "--weight-budget": ("4500m", 4_500_000_000),
    "--weight-ring": ("2", 2),
    "--weight-pin": ("0", 0),
    "--weight-pins": ("prefix", "prefix"),
    "--weight-digest": ("at-open", "at-open"),
    "--weight-codec": ("raw", "raw"),
    "--layout-dir": ("d", "d"),
    "--telemetry": ("off", "off"),
    "--device-sample-period": ("4", 4),
    "--device-sample-offset": ("0", 0),
    "--telemetry-log": ("f", "f"),
    "--batch-gemv": ("x4", "x4"),
    "--tail": ("generated", "generated"),
    "--prefill-attention": ("tiles", "tiles"),
    "--batch-attention": ("grouped", "grouped"),
    "--sampler": ("host", "host"),
    "--admin-port": ("65535", 65535),
    "--api-key": ("k", ("k",)),
    "--api-key-file": ("f", "f"),
    "--cors-origins": ("*", ("*",)),
    "--allowed-hosts": ("a.example,::1", ("a.example", "::1")),
    "--access-log": ("on", "on"),
    "--reasoning-format": ("auto", "auto"),
    "--sse-ping-interval": ("0", 0.0),
    "--request-timeout": ("0.5", 0.5),
    "--prefix-cache": ("off", "off"),
    "--drain-timeout": ("2.5", 2.5),
    "--shadow-ring": ("1", 1),
    "--shadow-requests": ("1", 1),
    "--shadow-timeout": ("1", 1),
}
BAD = {  # flag -> values it refuses; their exit status is 2 for caldrix's own flags, else 1
    "--image": ("", "a\0b"),
    "--max-tokens": ("0", "-1", "1.5", "x", "", "1e3", "1_0", " 1", "٣"),
    "--lengths": ("", ",", "0", "1,-2", "1.5", "8;9", "99999999"),
    "--depths": ("x", "0"),
    "--steps": ("0", "x", "65537"),
    "--rounds": ("0", "1001"),
    "--json": ("",),
    "--max-context": ("0", "-1", "2.5", "99999999999", ""),
    "--backend": ("host", "gpu", "CUDA", "", "CPU"),
    "--temperature": ("-1", "nan", "inf", "-inf", "1e999", "x", "", "0x1", "1_0"),
    "--top-k": ("-1", "1.5", "x", "inf"),
    "--top-p": ("0", "1.01", "nan", "-0.0"),
    "--min-p": ("-0.1", "1.1", "nan"),
    "--repetition-penalty": ("0", "-2", "inf", "nan"),
    "--seed": ("x", "1.5", "9223372036854775808", ""),
    "--port": ("-1", "65536", "1.5"),
    "--served-name": ("", "\udcff"),
    "--dtype": ("f16", "", "BF16"),
    "--activations": ("int4", "bf16", "", "INT8"),
    "--queue-depth": ("-1",),
    "--max-batch": ("0", "2", "-1"),
    "--parallel": ("0", "17", "-1", "2.5", "auto"),
    "--threads": ("0", "x", "1.5"),
    "--weight-budget": ("0", "-5g", "5x", "", "g", "99999999999999999999"),
    "--weight-ring": ("1", "x"),
    "--weight-pin": ("-1",),
    "--telemetry": ("loud",),
    "--cors-origins": ("", ","),
    "--allowed-hosts": ("", " , "),
    "--reasoning-format": ("some", ""),
    "--sse-ping-interval": ("-1", "86401", "x"),
    "--request-timeout": ("-1", "86401", "none"),
    "--prefix-cache": ("yes", "ON", ""),
    "--drain-timeout": ("-1", "inf"),
    "--device-sample-period": ("0",),
    "--batch-gemv": ("x3",),
    "--tail": ("other",),
}
SAID = [  # what a refusal says that has more to say than what is accepted
    ("--api-key", "", "must not be empty"),
    ("--api-key", " \t", "must not be empty"),
    ("--api-key", "se\0cret", "control characters"),
    ("--api-key", "se\ncret", "control characters"),
    ("--cors-origins", "https://a.example/", "write https://a.example"),
    ("--cors-origins", "https://u:p@A.example:443/x?y", "write https://a.example"),
    ("--cors-origins", "http://a,localhost:3000", "'localhost:3000': an origin is"),
    ("--cors-origins", "localhost:3000", "write http://localhost:3000"),
    ("--cors-origins", "http://[::1]:80/", "write http://[::1]"),
    ("--cors-origins", "null", "by * alone"),
    ("--cors-origins", "*,off", "takes origins such as"),
    ("--cors-origins", "http://", "takes origins such as"),
    ("--cors-origins", "file:///x", "takes origins such as"),
    ("--cors-origins", "http://a:0", "takes origins such as"),
    ("--cors-origins", "http://a:65536", "takes origins such as"),
    ("--cors-origins", "http://b\u00fccher.example", "takes origins such as"),
    ("--allowed-hosts", "http://a.example/x", "write a.example"),
    ("--allowed-hosts", "a.example:8425", "write a.example"),
    ("--allowed-hosts", "a,b/c", "'b/c': a host has no scheme"),
    ("--allowed-hosts", "[::1]:8425", "write ::1"),
    ("--allowed-hosts", "*", "takes names such as"),
    ("--allowed-hosts", "*.example.com", "takes names such as"),
    ("--allowed-hosts", "a b", "takes names such as"),
    ("--allowed-hosts", "fe80::1%eth0", "takes names such as"),
    ("--allowed-hosts", "b\u00fccher.example", "takes names such as"),
    ("--allowed-hosts", "a" * 64, "takes names such as"),
    ("--allowed-hosts", ".".join(["a" * 63] * 4), "takes names such as"),
]
VALUED = [flag for flag in FLAGS if flag.takes and flag.commands]
REFUSED_ON_RUN = {
    "--port": "use caldrix serve",
    "--host": "use caldrix serve",
    "--admin": "use caldrix serve",
    "--admin-port": "use caldrix serve",
    "--api-key": "use caldrix serve",
    "--drain-timeout": "use caldrix serve",
    "--model-dir": "first argument",
}


def command_of(flag: Flag) -> str:
    return next((c for c in ("run", "serve", "bench") if c in flag.commands), "serve")


def refusal(*arguments: str, command: str = "run") -> CaldrixError:
    with pytest.raises(CaldrixError) as caught:
        parse(command, arguments)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("flag", VALUED, ids=lambda flag: flag.name)
def test_every_flag_takes_its_value_in_both_spellings(flag: Flag) -> None:
    typed, value = GOOD[flag.name]
    for name in filter(None, (flag.name, flag.other)):
        for arguments in ([name, typed], [f"{name}={typed}"]):
            line = parse(command_of(flag), ["m", *arguments])
            assert line[flag.key] == value
            assert line.given == {flag.name}


@pytest.mark.parametrize("flag", VALUED, ids=lambda flag: flag.name)
def test_every_flag_without_its_value_is_a_usage_error(flag: Flag) -> None:
    for rest in ([], ["--seed", "1"]):
        error = refusal("m", flag.name, *rest, command=command_of(flag))
        assert isinstance(error, UsageError)
        assert flag.name in str(error)


@pytest.mark.parametrize("name", BAD)
def test_a_value_out_of_range_is_refused_by_name(name: str) -> None:
    flag = BY_NAME[name]
    for value in BAD[name]:
        error = refusal("m", f"{name}={value}", command=command_of(flag))
        assert type(error) is (UsageError if flag.own else RefusedError), value
        assert name in str(error)
        assert flag.kind.accepts in str(error)


@pytest.mark.parametrize(("name", "value", "words"), SAID)
def test_a_refusal_says_what_to_write(name: str, value: str, words: str) -> None:
    error = refusal("m", f"{name}={value}", command="serve")
    assert type(error) is RefusedError
    assert str(error).startswith(f"{name}: ")
    assert words in str(error)
    assert "cret" not in str(error)


@pytest.mark.parametrize("name", REFUSED_ON_RUN)
def test_what_a_run_does_not_serve_is_refused_with_or_without_a_value(name: str) -> None:
    for arguments in ([name, "1"], [name], [f"{name}=1"]):
        for command in ("run", "plan"):
            error = refusal("m", *arguments, command=command)
            assert isinstance(error, UsageError)
            assert name in str(error)
            assert REFUSED_ON_RUN[name] in str(error)


def test_a_run_has_one_reply_at_a_time() -> None:
    error = refusal("m", "--parallel", "2")
    assert isinstance(error, UsageError)
    assert str(error) == (
        "--parallel: caldrix run decodes one reply at a time; it belongs to caldrix serve"
    )
    assert parse("plan", ["m", "--parallel", "2"])["parallel"] == 2


def test_defaults_are_there_for_every_flag_of_the_command() -> None:
    line = parse("run", ["m"])
    assert line.model == "m"
    assert not line.given
    assert set(line.values) == {flag.key for flag in FLAGS if "run" in flag.commands}
    assert line["top_p"] == 1.0
    assert line["image"] == ()


def test_the_context_shown_as_the_default_is_the_loaders() -> None:
    assert BY_NAME["--max-context"].shown.startswith(f"{DEFAULT_CONTEXT}, or ")


def test_the_last_of_a_repeated_flag_wins_and_images_add_up() -> None:
    line = parse("run", ["m", "--seed", "1", "-i", "a", "--seed=2", "--image", "b"])
    assert line["seed"] == 2
    assert line["image"] == ("a", "b")


@pytest.mark.parametrize("text", ["-1 is a number", "--", "-x", "--not a flag", "- item"])
def test_a_prompt_may_start_with_a_dash(text: str) -> None:
    assert parse("run", ["m", "-p", text, "--raw"])["prompt"] == text


def test_a_prompt_that_is_a_flag_needs_the_equals_sign() -> None:
    assert "--prompt=..." in str(refusal("m", "-p", "--raw"))
    assert parse("run", ["m", "--prompt=--raw"])["prompt"] == "--raw"


@pytest.mark.parametrize("arguments", [[], ["-p", "hi"], ["--backend", "cpu", "m"], [""]])
def test_the_model_comes_first(arguments: list[str]) -> None:
    error = refusal(*arguments)
    assert isinstance(error, UsageError)
    assert "model" in str(error)


def test_a_stray_argument_is_a_usage_error() -> None:
    error = refusal("m", "-p", "hello", "world")
    assert isinstance(error, UsageError)
    assert "'world'" in str(error)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("--max-token", "did you mean --max-tokens?"),
        ("--tempreature=1", "did you mean --temperature?"),
        ("--no-such-flag", "caldrix run --help"),
        ("--\x1b[31m", "\\x1b[31m"),
    ],
)
def test_an_unknown_flag_is_refused_with_the_nearest_name(typed: str, hint: str) -> None:
    error = refusal("m", typed)
    assert isinstance(error, RefusedError)
    assert hint in str(error)


def test_a_switch_takes_no_value() -> None:
    assert parse("run", ["m", "--plain"])["plain"] is True
    assert "takes no value" in str(refusal("m", "--plain=yes"))

"""What a command line makes of the server's settings, and what is said about an open address."""

from pathlib import Path

import pytest

from caldrix import log
from caldrix.cli.parse import parse
from caldrix.cli.serve import main, settings, warn_if_open
from caldrix.engine.sequence import SamplingParams
from caldrix.engine.telemetry import Level, Telemetry
from caldrix.errors import RefusedError

FLAGS = (
    "--temperature 0.5 --seed 3 --queue-depth 2 --admission one --telemetry host"
    " --device-sample-period 4 --device-sample-offset 1 --sse-ping-interval 0"
    " --reasoning-format auto --api-key a --api-key b --prefix-cache off --request-timeout 2.5"
)


def test_flags_become_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALDRIX_API_KEY", raising=False)
    line = parse("serve", ["m", *FLAGS.split(), "--cors-origins", "http://a, http://b"])
    found = settings(line)
    assert found.sampling == SamplingParams(temperature=0.5, seed=3)
    assert (found.queue_depth, found.admission) == (2, "one")
    assert found.telemetry == Telemetry(Level.HOST, 4, 1)
    assert (found.ping_interval_s, found.reasoning_format) == (0, "auto")
    assert (found.prefix_cache, found.deadline_s) == (False, 2.5)
    default = settings(parse("serve", ["m"]))
    assert (default.prefix_cache, default.deadline_s) == (True, None)
    assert settings(parse("serve", ["m", "--request-timeout", "0"])).deadline_s is None
    assert found.access.keys == ("a", "b")
    assert found.access_log is None
    assert settings(parse("serve", ["m", "--access-log", "on"])).access_log is log.status
    assert found.access.origins == ("http://a", "http://b")


@pytest.mark.parametrize(
    ("given", "origins"),
    [
        ([], None),
        (["--cors-origins", "off"], ()),
        (["--cors-origins", "*"], ("*",)),
        (["--cors-origins", " HTTPS://A.example:443 ,"], ("https://a.example",)),
    ],
)
def test_which_pages_are_meant(given: list[str], origins: tuple[str, ...] | None) -> None:
    assert settings(parse("serve", ["m", *given])).access.origins == origins


@pytest.mark.parametrize(
    ("given", "hosts"),
    [
        ([], None),
        (["--allowed-hosts", "a", "--allowed-hosts", "off"], None),
        (["--allowed-hosts", "Box.Lan., [::2]"], ("box.lan", "::2")),
    ],
)
def test_which_hosts_are_meant(given: list[str], hosts: tuple[str, ...] | None) -> None:
    assert settings(parse("serve", ["m", *given])).access.hosts == hosts


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_nothing_is_said_about_loopback(host: str, capfd: pytest.CaptureFixture[str]) -> None:
    warn_if_open(host, False)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("has_keys", "words"), [(False, "no authentication and no TLS"), (True, "no TLS, so keys")]
)
def test_an_open_address_is_warned_of(
    has_keys: bool, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    warn_if_open("0.0.0.0", has_keys)
    err = capfd.readouterr().err
    assert err.startswith("caldrix: warning: --host 0.0.0.0 opens the server to that network")
    assert words in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--api-key-file", "/no/such/file"], "no such file"),
        (["--api-key-file", "/"], "is a directory"),
        (["--cors-origins", "http://a/b"], "write http://a"),
        (["--allowed-hosts", "a:80"], "write a"),
    ],
)
def test_who_may_ask_is_settled_before_the_port_is_taken_and_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], words: str
) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("caldrix.http.server.open_listeners", never)
    monkeypatch.setattr("caldrix.cli.prepare.load", never)
    with pytest.raises(RefusedError, match=rf"^{flags[0]}\b.*{words}"):
        main(["demo", *flags])


def test_keys_of_a_file_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALDRIX_API_KEY", raising=False)
    path = tmp_path / "keys"
    path.write_text("of-the-file\n")
    path.chmod(0o600)
    line = parse("serve", ["m", "--api-key", "a", "--api-key-file", str(path)])
    assert settings(line).access.keys == ("a", "of-the-file")

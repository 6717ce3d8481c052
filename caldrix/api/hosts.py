"""Hosts and the origins of web pages, each in one spelling, however a person or a client wrote it.

Owns what `--allowed-hosts` and `--cors-origins` accept and the words that refuse the rest. Knows
nothing of requests; access.py decides who is answered.
"""

import ipaddress
import re

from caldrix.errors import RefusedError, printable

ANY = "*"
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_-]{1,63})*\.?")
_AUTHORITY = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::([0-9]{0,5}))?")
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#@]+)")
# What people paste in place of a host or an origin: an address with all its parts.
_PASTED = re.compile(r"(?:([a-z][a-z0-9+.-]*)://)?(?:[^/?#@]*@)?([^/?#@]*)")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def spelled(host: str) -> str:
    """`[::1]` and `0:0:0:0:0:0:0:1` are `::1`; a name is lower case and has no last dot."""
    bare = host[1:-1] if host.startswith("[") else host
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return host.lower().removesuffix(".")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def host_of(authority: str) -> str:
    """The host of a Host header, whatever its port; "" where there is none."""
    match = _AUTHORITY.fullmatch(authority)
    return spelled(match[1]) if match else ""


def is_loopback(host: str) -> bool:
    """Whether a spelled host can only mean the machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_host(text: str) -> str:
    """A host that `--allowed-hosts` may name. Raises RefusedError that says what to write."""
    host = _host(text)
    if host is not None:
        return host
    pasted = _PASTED.match(text.lower())
    authority = _AUTHORITY.fullmatch(pasted[2]) if pasted else None
    meant = _host(authority[1]) if authority else None
    if meant is not None:
        reason = f"a host has no scheme, port or path; write {meant}"
    else:
        reason = "takes names such as example.com and addresses such as 192.168.1.5 or ::1"
    raise RefusedError(f"{printable(text)}: {reason}")


def parse_origin(text: str) -> str:
    """An origin that `--cors-origins` may name, as browsers send it, or `*`."""
    if text == ANY:
        return ANY
    match = _ORIGIN.fullmatch(text.lower())
    origin = _origin(match[1], match[2]) if match else None
    if origin is not None:
        return origin
    pasted = _PASTED.match(text.lower())
    is_host = text.lower().startswith("localhost") or "." in text
    scheme = (pasted[1] if pasted else None) or ("http" if is_host else None)
    meant = _origin(scheme, pasted[2]) if pasted and scheme else None
    if text.lower() == "null":
        reason = "pages without an origin of their own are let in by * alone"
    elif meant is not None:
        reason = f"an origin is a scheme, a host and a port without a path; write {meant}"
    else:
        reason = "takes origins such as https://app.example.com or http://localhost:3000, or *"
    raise RefusedError(f"{printable(text)}: {reason}")


def _host(text: str) -> str | None:
    host = spelled(text)
    is_name = len(text) <= 254 and bool(_NAME.fullmatch(text.lower()))
    return host if is_name or (":" in text and _is_address(host)) else None


def _is_address(host: str) -> bool:
    try:
        return not getattr(ipaddress.ip_address(host), "scope_id", None)
    except ValueError:
        return False


def _origin(scheme: str, authority: str) -> str | None:
    match = _AUTHORITY.fullmatch(authority)
    host = _host(match[1]) if match else None
    if match is None or host is None:
        return None
    if ":" in host:
        host = f"[{host}]"
    port = int(match[2]) if match[2] else _DEFAULT_PORTS.get(scheme)
    if port == _DEFAULT_PORTS.get(scheme):
        return f"{scheme}://{host}"
    return f"{scheme}://{host}:{port}" if port is not None and 0 < port < 65536 else None

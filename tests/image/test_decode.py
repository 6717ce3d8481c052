"""Image files that are refused, each in one line that names the file, and those that are taken."""

import base64
import contextlib
import struct
import zlib

import pytest

from caldrix.errors import CaldrixError, RefusedError, TooLargeError
from caldrix.image.decode import MAX_BYTES, MAX_SIDE, check_image

# A 2x3 JPEG and a 5x4 lossless WebP, made with Pillow.
JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQ"
    "c1tdhbWGkJ6jq62rZ4C8ybqmx5moq6T/wAALCAADAAIBAREA/8QAHwAAAQUBAQEBAQEAAAAAAAAAAAECAwQFBgcI"
    "CQoL/8QAtRAAAgEDAwIEAwUFBAQAAAF9AQIDAAQRBRIhMUEGE1FhByJxFDKBkaEII0KxwRVS0fAkM2JyggkKFhcY"
    "GRolJicoKSo0NTY3ODk6Q0RFRkdISUpTVFVWV1hZWmNkZWZnaGlqc3R1dnd4eXqDhIWGh4iJipKTlJWWl5iZmqKj"
    "pKWmp6ipqrKztLW2t7i5usLDxMXGx8jJytLT1NXW19jZ2uHi4+Tl5ufo6erx8vP09fb3+Pn6/9oACAEBAAA/AK9f"
    "/9k="
)
WEBP = base64.b64decode("UklGRiAAAABXRUJQVlA4TBQAAAAvBMAAAAdQ5FQIIAAKmv7HiIj+Bw==")


def png(width: int, height: int) -> bytes:
    """A grey PNG; its pixels are left out where there would be too many."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = bytes((width + 1) * height) if width * height < 10**6 else b"\0"
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


TAKEN = {
    "p.png": (png(7, 5), "PNG", (7, 5)),
    "a jpeg.png": (JPEG, "JPEG", (2, 3)),
    "w.webp": (WEBP, "WEBP", (5, 4)),
    "side.png": (png(MAX_SIDE, 1), "PNG", (MAX_SIDE, 1)),
}
REFUSED = {
    "empty.png": (b"", RefusedError, "is empty"),
    "text.png": (b"not a picture", RefusedError, "not a PNG, JPEG or WebP"),
    "a.gif": (b"GIF89a" + bytes(20), RefusedError, "not a PNG, JPEG or WebP"),
    "cut.png": (png(50, 50)[:60], RefusedError, "damaged"),
    "head.png": (png(50, 50)[:20], RefusedError, "damaged"),
    "cut.jpg": (JPEG[:-40], RefusedError, "damaged"),
    "cut.webp": (WEBP[:30], RefusedError, "damaged"),
    "big.png": (png(4, 4) + bytes(MAX_BYTES), TooLargeError, "over 8 MiB"),
    "wide.png": (png(MAX_SIDE + 1, 1), TooLargeError, f"at most {MAX_SIDE}"),
    "bomb.png": (png(65535, 65535), TooLargeError, f"at most {MAX_SIDE}"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_the_bytes_tell_the_format(name: str) -> None:
    data, kind, sides = TAKEN[name]
    image = check_image(name, data)
    assert (image.format, (image.width, image.height), image.data) == (kind, sides, data)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_file_and_the_reason(name: str) -> None:
    data, kind, words = REFUSED[name]
    with pytest.raises(kind) as caught:
        check_image(name, data)
    message = str(caught.value)
    assert name in message
    assert words in message
    assert "\n" not in message


def test_no_cut_of_a_file_escapes_as_another_error() -> None:
    for whole in (JPEG, WEBP, png(9, 9)):
        for length in range(0, len(whole), 7):
            with contextlib.suppress(CaldrixError):
                check_image("cut", whole[:length])

"""Image files from outside: told by their bytes, checked in full before anything else is done with
them.

Owns the limits and the only use of Pillow. A file is hostile: its size and its stated sides are
checked before a pixel is decoded, so that a small file cannot ask for gigabytes. Knows no model and
no flag; a refusal names the file and what would be accepted.
"""

import io
import warnings
from dataclasses import dataclass

from caldrix.errors import RefusedError, TooLargeError, printable

MAX_BYTES = 8 * 2**20
MAX_SIDE = 4096  # pixels


@dataclass(frozen=True, slots=True)
class Image:
    """A file that decodes: its bytes, its format (PNG, JPEG or WEBP), its sides in pixels."""

    name: str
    data: bytes
    format: str
    width: int
    height: int


def check_image(name: str, data: bytes) -> Image:
    """Decodes once to know that it can be; raises RefusedError or TooLargeError, in one line."""
    shown = printable(name)
    if not data:
        raise RefusedError(f"image {shown} is empty")
    if len(data) > MAX_BYTES:
        raise TooLargeError(f"image {shown} is over 8 MiB")
    kind = sniff(data)
    if kind is None:
        raise RefusedError(f"image {shown} is not a PNG, JPEG or WebP file")
    width, height = _decode(shown, kind, data)
    return Image(name, data, kind, width, height)


def sniff(data: bytes) -> str | None:
    """The format by the first bytes, never by the file's name."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "WEBP"
    return None


def _decode(shown: str, kind: str, data: bytes) -> tuple[int, int]:
    import PIL
    import PIL.Image

    too_large = TooLargeError(f"image {shown}: a side is at most {MAX_SIDE} pixels")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # our own limit on the sides is the stricter one
            with PIL.Image.open(io.BytesIO(data), formats=[kind]) as image:
                if max(image.size) > MAX_SIDE:
                    raise too_large
                image.load()
                return image.size
    except (TooLargeError, MemoryError):
        raise
    except PIL.Image.DecompressionBombError:
        raise too_large from None
    except PIL.UnidentifiedImageError:
        raise RefusedError(f"image {shown} is damaged: its header cannot be read") from None
    except Exception as error:  # what a decoder raises on damage is not documented
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RefusedError(f"image {shown} is damaged: {reason}") from None

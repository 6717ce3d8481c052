"""Prints the path of the demo's GGUF file, fetched into the cache when it is not there yet.

For scripts: status lines go to stderr. Prints nothing on stdout when it cannot be had.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from caldrix.errors import CaldrixError
from caldrix.hub.fetch import fetch
from caldrix.hub.resolve import parse_model
from caldrix.log import status

try:
    print(fetch(parse_model("demo"), status))
except CaldrixError as error:
    status(f"the demo model cannot be had: {error}")

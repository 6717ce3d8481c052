"""A download in a process of its own, to be interrupted, killed or run beside another."""

import os
import subprocess
import sys
import time
from collections.abc import Callable

PROGRAM = """
import sys
from caldrix import log
from caldrix.hub.fetch import fetch
from caldrix.hub.resolve import parse_model
try:
    print(fetch(parse_model(sys.argv[1]), log.status))
except KeyboardInterrupt:
    sys.exit(130)
"""


def start(model: str) -> subprocess.Popen[str]:
    """Fetches a model argument; prints the path, or exits with 130 when interrupted."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, model],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
        start_new_session=True,
    )


def wait_until(is_asked: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Until the file is on its way, and some of it has arrived."""
    end = time.monotonic() + 30
    while not is_asked():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    time.sleep(0.3)

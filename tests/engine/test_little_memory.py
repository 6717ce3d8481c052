"""Loads in an address space that is too small: refused with numbers, or an answer, nothing else.

A process of its own sets the limit, with all its libraries loaded, to ever more above what it has.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from known_reply import write_model

ROOT = Path(__file__).resolve().parents[2]
LOADS = """
import mmap, resource, sys
from caldrix import engine
from caldrix.cli import main, prepare, replies, run
import caldrix.engine.load, caldrix.text.chat_template, jinja2.sandbox

main.main(["run", sys.argv[1], "-p", "hi", "--threads", "1"])
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
for megabytes in map(int, sys.argv[2:]):
    in_use = int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (in_use + megabytes * 1_000_000, hard))
    print("#", megabytes, file=sys.stderr, flush=True)
    flags = ["-p", "hi", "--threads", "1", "--ctx", "60000", "--backend", "cpu", "--plain"]
    status = main.main(["run", sys.argv[1], *flags])
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    print("##", status, file=sys.stderr, flush=True)
"""


def test_what_does_not_fit_is_refused_with_numbers(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", "quick")
    config = model / "config.json"
    values = json.loads(config.read_text())
    config.write_text(json.dumps(values | {"max_position_embeddings": 10**6}))
    limits = [str(limit) for limit in (0, 1, 4, 8, 12, 16, 24, 32, 64, 256)]
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(model), *limits],
        capture_output=True,
        text=True,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
    )
    assert done.returncode == 0, done.stderr
    runs = re.findall(r"^# \d+\n(.*?)^## (\d+)\n", done.stderr, re.DOTALL | re.MULTILINE)
    assert len(runs) == len(limits)
    statuses = [int(status) for _, status in runs]
    assert statuses == sorted(statuses, reverse=True)
    assert (statuses[0], statuses[-1]) == (1, 0)
    for said, status in runs:
        assert "internal error" not in said
        if int(status) == 1:
            assert re.search(r"\d [kMG]B|out of memory\n", said), said

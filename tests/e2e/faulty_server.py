"""`caldrix serve` whose steps are slow or go wrong: python faulty_server.py FAULTS MODEL [flags].

FAULTS is a JSON object: `decode_s` and `prefill_s` are slept before each step of that kind,
`load_s` before the model is loaded; `fails_at` and `dies_at` number the step that raises an
exception or ends the engine's thread; `signal` is sent to this process itself at the stage
`signal_at`: "loaded" or "starting".
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from caldrix.api.serving import Server
from caldrix.cli.main import main
from caldrix.compile.program import Program
from caldrix.engine import load

FAULTS = json.loads(sys.argv[1])
REAL = Program.step
REAL_LOAD, REAL_START = load.load_model, Server.start
n_steps = 0


def step(self: Program, tokens: Any, *rest: Any) -> Any:
    global n_steps
    n_steps += 1
    time.sleep(FAULTS.get("prefill_s" if len(tokens) > 1 else "decode_s", 0))
    if n_steps == FAULTS.get("fails_at"):
        raise ValueError("an injected fault")
    if n_steps == FAULTS.get("dies_at"):
        raise SystemExit("an injected death")
    return REAL(self, tokens, *rest)


def load_model(*values: Any) -> Any:
    time.sleep(FAULTS.get("load_s", 0))
    model = REAL_LOAD(*values)
    reach("loaded")
    return model


async def start(self: Server) -> None:
    reach("starting")
    await REAL_START(self)


def reach(stage: str) -> None:
    if FAULTS.get("signal_at") == stage:
        os.kill(os.getpid(), FAULTS["signal"])


Program.step = step  # type: ignore[method-assign]
load.load_model = load_model
Server.start = start  # type: ignore[method-assign]
sys.argv[1:] = ["serve", *sys.argv[2:]]
sys.exit(main())

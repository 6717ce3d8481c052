"""`caldrix serve` whose steps are slow or go wrong: python faulty_server.py FAULTS MODEL [flags].

FAULTS is a JSON object: `decode_s` and `prefill_s` are slept before each step of that kind,
`fails_at` and `dies_at` number the step that raises an exception or ends the engine's thread.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from caldrix.cli.main import main
from caldrix.compile.program import Program

FAULTS = json.loads(sys.argv[1])
REAL = Program.step
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


Program.step = step  # type: ignore[method-assign]
sys.argv[1:] = ["serve", *sys.argv[2:]]
sys.exit(main())

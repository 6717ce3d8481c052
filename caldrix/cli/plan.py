"""`caldrix plan MODEL`: prints what would run, op by op, and stops.

Owns nothing but the order: the same checks and the same load as a run, then the program describes
itself.
"""

import sys
from collections.abc import Sequence

from caldrix.cli.parse import parse


def main(arguments: Sequence[str]) -> int:
    from caldrix.cli import prepare, rules

    line = parse("plan", arguments)
    model = prepare.load(line, rules.check(line))
    try:
        sys.stdout.write(model.program.describe().rstrip("\n") + "\n")
        sys.stdout.flush()
    finally:
        model.program.close()
    return 0

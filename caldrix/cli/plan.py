"""`caldrix plan MODEL`: prints what would run, op by op, and stops.

Owns nothing but the order: the same checks and the same load as a run, then the program describes
itself.
"""

from collections.abc import Sequence

from caldrix.cli.parse import parse


def main(arguments: Sequence[str]) -> int:
    from caldrix.cli import prepare, rules
    from caldrix.cli.output import Output

    line = parse("plan", arguments)
    output = Output(exact=True)
    model = prepare.load(line, rules.check(line))
    try:
        output.write(model.program.describe().rstrip("\n") + "\n")
    finally:
        model.program.close()
    return 0

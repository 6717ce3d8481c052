"""The `caldrix` command, also as `python -m caldrix`.

Owns nothing but the call, and a Ctrl-C that comes while the program is still read. It must import
nothing at its top but what the interpreter has loaded.
"""

import sys


def main() -> int:
    try:
        from caldrix.cli.main import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

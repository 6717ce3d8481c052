"""`python -m caldrix`: the same program as the `caldrix` command.

Owns nothing but the call. It must import nothing heavy.
"""

import sys

if __name__ == "__main__":
    try:
        from caldrix.cli.main import main
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(main())

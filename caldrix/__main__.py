"""`python -m caldrix`: the same program as the `caldrix` command.

Owns nothing but the call. It must import nothing heavy.
"""

import sys

from caldrix.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m topics` is the `topics` command."""

import sys

from topics.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

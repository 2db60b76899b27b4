"""The `topics` command, also as `python -m topics`. Handles signals before it imports the rest."""

import sys

from topics import early_signals

EXIT_INTERRUPTED = 130


def main() -> int:
    if sys.argv[1:2] == ["serve"]:
        early_signals.handle()
    try:
        from topics.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())

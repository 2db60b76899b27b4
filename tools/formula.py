"""Print the Homebrew formula of an sdist: `python tools/formula.py dist/*.tar.gz --url ADDRESS`.

The address is that of the directory from which the sdist will be downloaded.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from pathlib import Path

TEMPLATE = Path(__file__).parents[1] / "deploy" / "homebrew" / "topics-engine.rb.in"


def formula(sdist: Path, url: str, homepage: str) -> str:
    """Return the formula. Raise `ValueError` if the file is not an sdist of topics."""
    named = re.fullmatch(r"topics_engine-(.+)\.tar\.gz", sdist.name)
    if named is None:
        raise ValueError(f"{sdist.name} is not an sdist of topics")
    values = {
        "HOMEPAGE": homepage,
        "URL": f"{url.rstrip('/')}/{sdist.name}",
        "VERSION": named[1],
        "SHA256": hashlib.sha256(sdist.read_bytes()).hexdigest(),
    }
    return re.sub(r"@([A-Z0-9]+)@", lambda found: values[found[1]], TEMPLATE.read_text())


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sdist", type=Path)
    parser.add_argument("--url", required=True, help="the address of the directory that has the sdist")
    parser.add_argument("--homepage", help="the address of the project; by default that of the directory")
    given = parser.parse_args(argv)
    print(formula(given.sdist, given.url, given.homepage or given.url), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

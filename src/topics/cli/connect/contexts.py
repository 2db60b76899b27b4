"""Contexts: named servers with the file of their API key, in one file of the user.

The file is `$XDG_CONFIG_HOME/topics/contexts.json` (`~/.config/topics/contexts.json`). It never holds a key, only the
path of the file that does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from topics.cli.output.failures import EXIT_NOT_FOUND, Failure


@dataclass(frozen=True)
class Context:
    """One named server."""

    url: str
    token_file: str | None = None


@dataclass
class Contexts:
    """The contexts of a user. `current` is the one that commands use without `--context`."""

    current: str | None = None
    by_name: dict[str, Context] = field(default_factory=dict)

    def find(self, name: str) -> Context:
        """Return a context. Raise `Failure` if there is none of this name."""
        try:
            return self.by_name[name]
        except KeyError:
            raise Failure(
                f"there is no context {name!r}",
                status=EXIT_NOT_FOUND,
                next_step="`topics context ls` lists the contexts, and `topics context add` adds one",
            ) from None


def path_of(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "topics" / "contexts.json"


def load(env: Mapping[str, str]) -> Contexts:
    """Return the contexts of the user. Raise `Failure` if the file is damaged."""
    path = path_of(env)
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        by_name = {name: Context(**row) for name, row in stored["contexts"].items()}
        return Contexts(stored.get("current"), by_name)
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Failure(
            f"{path} cannot be read: {error}", next_step=f"repair or remove {path}, and add the contexts again"
        ) from None


def save(contexts: Contexts, env: Mapping[str, str]) -> None:
    """Write the contexts by rename, so that another command never reads half a file."""
    path = path_of(env)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    rows = {name: {k: v for k, v in asdict(row).items() if v is not None} for name, row in contexts.by_name.items()}
    text = json.dumps({"current": contexts.current, "contexts": rows}, indent=2) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.chmod(0o600)
    temporary.replace(path)

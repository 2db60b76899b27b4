"""Kinds of settings: how a value is parsed from text, and shown as an operator would write it."""

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from topics.keys import BadKeys, KeyRule, parse_lines, parse_list

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_SIZE = re.compile(r"([0-9]+) ?(|k|K|M|G|T|KiB|MiB|GiB|TiB)")
_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": 1 << 40}
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s@]+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """Parser and printer of a type of setting. `parse` raises ValueError with the reason."""

    name: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str


def _parse_integer(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text):
        raise ValueError(f"{text!r} is not a whole number, such as 100")
    return int(text)


def _parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None or len(text) > 24:
        raise ValueError(
            f"{text!r} is not a size; use a number of bytes, or a number with KiB, MiB or GiB (short: k, M, G)"
        )
    return int(match[1]) * _UNITS[match[2][:1].upper()]


def _show_size(value: int) -> str:
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if value and value % factor == 0:
            return f"{value // factor}{unit}"
    return str(value)


def _parse_bool(text: str) -> bool:
    word = text.lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(f"{text!r} is not a boolean; use 1, 0, true, false, yes, no, on or off")
    return word in _TRUE


def _parse_origins(text: str) -> tuple[str, ...]:
    origins = tuple(part.strip() for part in text.split(",") if part.strip())
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ValueError(f"{origin!r} is not an origin; use * or scheme://host[:port], without a path")
    return origins


@dataclasses.dataclass(frozen=True)
class KeyFile:
    """A file of API keys and its rules. Only digests of its secrets are kept."""

    path: Path
    rules: tuple[KeyRule, ...] = dataclasses.field(repr=False)


def _parse_key_file(text: str) -> KeyFile:
    path = Path(text)
    try:
        return KeyFile(path, parse_lines(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{text} cannot be read: {_reason(error)}") from None
    except BadKeys as error:
        raise ValueError(f"{text}: {error}") from None


def _parse_output_file(text: str) -> Path:
    path = Path(text)
    if not path.parent.is_dir():
        raise ValueError(f"the directory {path.parent} does not exist; create it first")
    return path


def _parse_input_file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise ValueError(f"the file {text} does not exist")
    return path


def _parse_directory(text: str) -> Path:
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise ValueError(f"{text} is a file, not a directory; choose a directory")
    return path


def choice(*words: str) -> Kind:
    """Return a kind whose values are these words."""

    def parse(text: str) -> str:
        word = text.lower()
        if word not in words:
            raise ValueError(f"{text!r} is not one of {', '.join(words)}")
        return word

    return Kind(name=" | ".join(words), parse=parse)


def _reason(error: Exception) -> str:
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else type(error).__name__


def parse_bucket_url(url: str) -> str:
    """Return the URL of a replica. Raise `ValueError` if it is none."""
    parts = urlsplit(url)
    if parts.scheme not in ("s3", "gs", "az", "file"):
        raise ValueError(f"{url} is no replica; use s3://bucket/prefix, gs://…, az://container/prefix or file:///dir")
    if parts.username or parts.password or parts.query:
        raise ValueError("the URL must have no credentials; set them in the environment, as for other programs")
    if parts.scheme == "file" and (parts.netloc or parts.path in ("", "/")):
        raise ValueError(f"{url} has no directory; use file:///var/lib/topics-replica")
    if parts.scheme != "file" and not parts.netloc:
        raise ValueError(f"{url} has no bucket; use {parts.scheme}://bucket/prefix")
    return url


TEXT = Kind(name="text", parse=str)
BUCKET_URL = Kind(name="URL", parse=parse_bucket_url)
COUNT = Kind(name="integer", parse=_parse_integer)
MILLIS = Kind(name="milliseconds", parse=_parse_integer)
SIZE = Kind(name="size", parse=_parse_size, show=_show_size)
FLAG = Kind(name="boolean", parse=_parse_bool, show=lambda value: "true" if value else "false")
ORIGINS = Kind(name="list of origins", parse=_parse_origins, show=",".join)
DIRECTORY = Kind(name="directory", parse=_parse_directory)
KEYS = Kind(name="list of keys", parse=parse_list)
KEY_FILE = Kind(name="file", parse=_parse_key_file, show=lambda value: str(value.path))
INPUT_FILE = Kind(name="file", parse=_parse_input_file)
OUTPUT_FILE = Kind(name="file", parse=_parse_output_file)

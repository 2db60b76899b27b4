"""Kinds of settings: how a value is parsed from text, and shown as an operator would write it."""

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from topics.keys import BadKeys, parse_lines, parse_list
from topics.token_keys import BadTokenKeys, parse_token_keys
from topics.webhooks import BadWebhooks, parse_webhooks

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
U63 = (1 << 63) - 1
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_SIZE = re.compile(r"([0-9]+) ?(|k|K|M|G|T|KiB|MiB|GiB|TiB)")
_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": 1 << 40}
_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s@]+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """Parser, printer and default bounds of a type of setting. `parse` raises ValueError with the reason."""

    name: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str
    low: int | None = None
    high: int | None = None

    def __call__(
        self, default: Any, help: str, *, low: int | None = None, high: int | None = None, secret: bool = False
    ) -> Any:
        """Return a field of `Settings` with its table row. The type is `Any`, so that the annotation declares it."""
        bounds = {"low": self.low if low is None else low, "high": self.high if high is None else high}
        row = {"kind": self, "default": default, "help": help, "secret": secret, **bounds}
        return dataclasses.field(default=default, repr=not secret, metadata=row)


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
    if text.lower() not in _BOOLEANS:
        raise ValueError(f"{text!r} is not a boolean; use 1, 0, true, false, yes, no, on or off")
    return _BOOLEANS[text.lower()]


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _parse_origins(text: str) -> tuple[str, ...]:
    origins = _parse_names(text)
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ValueError(f"{origin!r} is not an origin; use * or scheme://host[:port], without a path")
    return origins


@dataclasses.dataclass(frozen=True)
class SecretFile:
    """A file with secrets, and what it held. Of API keys, only digests are kept."""

    path: Path
    keys: Any = dataclasses.field(repr=False)


def _secret_file(parse: Callable[[str], Any]) -> Callable[[str], SecretFile]:
    """Return a parser of paths of files with secrets. Its `ValueError` never quotes the file."""

    def read(text: str) -> SecretFile:
        path = Path(text)
        try:
            return SecretFile(path, parse(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else type(error).__name__
            raise ValueError(f"{path} cannot be read: {reason}") from None
        except (BadKeys, BadTokenKeys, BadWebhooks) as error:
            raise BadKeys(f"{path}: {error}") from None

    return read


def _path(is_wrong: Callable[[Path], bool], problem: str) -> Callable[[str], Path]:
    """Return a parser of paths. `problem` gets the text and the path."""

    def parse(text: str) -> Path:
        path = Path(text)
        if is_wrong(path):
            raise ValueError(problem.format(text, path))
        return path

    return parse


def choice(*words: str) -> Kind:
    def parse(text: str) -> str:
        word = text.lower()
        if word not in words:
            raise ValueError(f"{text!r} is not one of {', '.join(words)}")
        return word

    return Kind(name=" | ".join(words), parse=parse)


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


def _parse_http_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url} is no address of a server; use http://host:port")
    return url.rstrip("/")


HTTP_URL = Kind(name="URL", parse=_parse_http_url)
BUCKET_URL = Kind(name="URL", parse=parse_bucket_url)
TEXT = Kind(name="text", parse=str)
COUNT = Kind(name="integer", parse=_parse_integer, low=1, high=U63)
MILLIS = Kind(name="milliseconds", parse=_parse_integer, low=1, high=DAY_MS)
SIZE = Kind(name="size", parse=_parse_size, show=_show_size, low=1, high=U63)
FLAG = Kind(name="boolean", parse=_parse_bool, show=lambda value: "true" if value else "false")
NAMES = Kind(name="list of names", parse=_parse_names, show=",".join)
ORIGINS = Kind(name="list of origins", parse=_parse_origins, show=",".join)
DIRECTORY = Kind(
    name="directory",
    parse=_path(lambda path: path.exists() and not path.is_dir(), "{0} is a file, not a directory; choose a directory"),
)
KEYS = Kind(name="list of keys", parse=parse_list)
KEY_FILE = Kind(name="file", parse=_secret_file(parse_lines), show=lambda value: str(value.path))
TOKEN_KEY_FILE = Kind(name="file", parse=_secret_file(parse_token_keys), show=lambda value: str(value.path))
WEBHOOKS_FILE = Kind(name="file", parse=_secret_file(parse_webhooks), show=lambda value: str(value.path))
INPUT_FILE = Kind(name="file", parse=_path(lambda path: not path.is_file(), "the file {0} does not exist"))
OUTPUT_FILE = Kind(
    name="file",
    parse=_path(lambda path: not path.parent.is_dir(), "the directory {1.parent} does not exist; create it first"),
)

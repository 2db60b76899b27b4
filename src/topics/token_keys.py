"""Keys that sign tokens: parse the file of an operator, which has one of three forms. Pure: no files.

    lines           secrets for HS256, of 32 or more characters; the first one signs the tokens of this server
    PEM blocks      public keys, for RS256 (RSA) and EdDSA (Ed25519)
    a JSON object   a JWKS (RFC 7517) with keys of the types oct, RSA and OKP

A key has one algorithm, and a token is checked with that of its key, whatever the token says. Messages never quote the
file. Keys other than secrets need the package `cryptography`.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any, NamedTuple

MIN_SECRET_CHARS = 32
ALGORITHMS = ("HS256", "RS256", "EdDSA")
_PEM = re.compile(r"-----BEGIN [A-Z ]+-----.+?-----END [A-Z ]+-----", re.DOTALL)


class TokenKey(NamedTuple):
    id: str  # the `kid` of a token that it signs
    algorithm: str
    key: Any  # as PyJWT takes it

    def __repr__(self) -> str:
        return f"TokenKey({self.id!r}, {self.algorithm!r})"


class BadTokenKeys(ValueError):
    """Invalid keys: where and why. The message never contains a part of a key."""


def secret_key(secret: str) -> TokenKey:
    return TokenKey(sha256(secret.encode()).hexdigest()[:16], "HS256", secret)


def parse_token_keys(text: str) -> tuple[TokenKey, ...]:
    """Return the keys of a file. Raise `BadTokenKeys` if one cannot be used."""
    if text.lstrip().startswith("{"):
        keys = _parse_jwks(text)
    elif blocks := _PEM.findall(text):
        keys = [_parse_pem(block, number) for number, block in enumerate(blocks, start=1)]
    else:
        lines = [line.strip() for line in text.splitlines() if not line.lstrip().startswith("#")]
        keys = [secret_key(line) for line in lines if line]
        if any(len(line) < MIN_SECRET_CHARS for line in lines if line):
            raise BadTokenKeys(f"a secret has less than {MIN_SECRET_CHARS} characters; use openssl rand -hex 32")
    if not keys:
        raise BadTokenKeys("contains no key; add one, or unset it")
    if len({key.id for key in keys}) < len(keys):
        raise BadTokenKeys("two keys have the same id (kid)")
    return tuple(keys)


def _parse_jwks(text: str) -> list[TokenKey]:
    import jwt

    try:
        rows = json.loads(text)["keys"]
        keys = []
        for number, row in enumerate(rows, start=1):
            if row["kty"] != "oct" and "d" in row:
                raise BadTokenKeys(f"key {number} is private; use the public key")
            made = jwt.PyJWK(row)
            if made.algorithm_name not in ALGORITHMS:
                raise BadTokenKeys(f"key {number}: the algorithm is not one of {', '.join(ALGORITHMS)}")
            if made.algorithm_name == "HS256" and len(made.key) < MIN_SECRET_CHARS:
                raise BadTokenKeys(f"key {number} has less than {MIN_SECRET_CHARS} bytes")
            keys.append(TokenKey(row.get("kid") or f"key{number}", made.algorithm_name, made.key))
    except jwt.exceptions.MissingCryptographyError:
        raise _needs_package() from None
    except (ValueError, KeyError, TypeError, AttributeError, jwt.exceptions.PyJWTError) as error:
        if isinstance(error, BadTokenKeys):
            raise
        raise BadTokenKeys(f"is not a JWKS with usable keys ({type(error).__name__})") from None
    return keys


def _parse_pem(block: str, number: int) -> TokenKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError:
        raise _needs_package() from None
    try:
        key = load_pem_public_key(block.encode())
    except ValueError:
        raise BadTokenKeys(f"PEM block {number} is not a public key") from None
    if not isinstance(key, (RSAPublicKey, Ed25519PublicKey)):
        raise BadTokenKeys(f"PEM block {number} is not a public key for {' or '.join(ALGORITHMS[1:])}")
    return TokenKey(f"key{number}", "RS256" if isinstance(key, RSAPublicKey) else "EdDSA", key)


def _needs_package() -> BadTokenKeys:
    return BadTokenKeys("public keys need a package: pip install 'topics-engine[jwt]'")

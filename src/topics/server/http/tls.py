"""TLS for servers without a proxy: the certificate files, and how they are read again while the server runs."""

from __future__ import annotations

import ssl
from pathlib import Path

from topics.errors import Code, TopicsError


class Certificate:
    """A certificate chain with its key. `context` is the TLS context of the listening sockets."""

    def __init__(self, cert: Path, key: Path | None) -> None:
        """Read the files. Raise `TopicsError` if they cannot be used."""
        self._cert = cert
        self._key = key
        self.context = self._read()

    def reload(self) -> None:
        """Use the present files for new connections. Raise `TopicsError` and change nothing if they cannot be used.

        Open connections keep the certificate with which they began.
        """
        self._read()  # a pair that does not match must not reach the context in use
        self.context.load_cert_chain(self._cert, self._key)

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.set_alpn_protocols(["h2", "http/1.1"])
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_password)
        except (OSError, ValueError) as error:
            files = str(self._cert) if self._key is None else f"{self._cert} and {self._key}"
            raise TopicsError(
                Code.INVALID_REQUEST, f"TOPICS_TLS_CERT, TOPICS_TLS_KEY: {files}: {_reason(error)}"
            ) from None
        return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; store it without a password, readable by the user of the server only")


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key does not belong to the certificate"
        return "no certificate in PEM form with its private key"
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror}"
    return str(error)

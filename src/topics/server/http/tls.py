"""TLS for servers without a proxy: the certificate files, and TLS between the socket and the protocol of a connection.

The event loop's own TLS has a buffer of 256 KiB for each connection, and buffers of OpenSSL that grow with what passes
and never shrink: an idle connection that had read 1 MB took 1.3 MiB. Here OpenSSL gets and returns pieces, and unsent
bytes are in the buffer of the socket's transport alone, so it matters little what a connection has sent and received.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from enum import Enum, auto
from pathlib import Path
from typing import Any, cast

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
        def refuse_encrypted() -> str:
            raise ValueError(
                "the key is encrypted; store it without a password, readable by the user of the server only"
            )

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.set_alpn_protocols(["h2", "http/1.1"])
        try:
            context.load_cert_chain(self._cert, self._key, password=refuse_encrypted)
        except (OSError, ValueError) as error:
            files = str(self._cert) if self._key is None else f"{self._cert} and {self._key}"
            raise TopicsError(
                Code.INVALID_REQUEST, f"TOPICS_TLS_CERT, TOPICS_TLS_KEY: {files}: {_reason(error)}"
            ) from None
        return context


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key does not belong to the certificate"
        return "no certificate in PEM form with its private key"
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror}"
    return str(error)


_PIECE_BYTES = 16 << 10  # what passes through the buffers of OpenSSL at a time: a record of TLS
_CLOSE_S = 5.0  # how long a closed connection waits for the client's end of TLS

Data = bytes | bytearray | memoryview


class _State(Enum):
    HANDSHAKE = auto()
    OPEN = auto()
    CLOSING = auto()  # our end of TLS is sent, and what the client sends before its own is ignored


HANDSHAKE, OPEN, CLOSING = _State


class TlsTransport(asyncio.Protocol):
    """The protocol of a socket's transport, and the transport of a connection's protocol."""

    __slots__ = ("_incoming", "_lost", "_outgoing", "_protocol", "_raw", "_ssl", "_state", "_timer", "_wait_s")

    def __init__(
        self, protocol: asyncio.Protocol, context: ssl.SSLContext, *, handshake_s: float, lost: Callable[[], None]
    ) -> None:
        """`lost` is called if the connection ends before its handshake, later ends are those of the protocol."""
        self._protocol = protocol
        self._lost = lost
        self._wait_s = handshake_s
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._raw: Any = None  # the socket's transport
        self._state = HANDSHAKE
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = transport
        self._timer = asyncio.get_running_loop().call_later(self._wait_s, self._raw.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._state is HANDSHAKE:
            self._lost()
        else:
            self._protocol.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        chunks: list[bytes] = []
        ended = False
        try:
            for at in range(0, len(data), _PIECE_BYTES):
                self._incoming.write(data[at : at + _PIECE_BYTES])
                ended = self._decrypt(chunks)
        except ssl.SSLError:
            self._flush()  # the alert
            self._fail()
            return
        self._flush()
        if chunks and self._state is OPEN:
            self._protocol.data_received(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        if ended:  # TLS has no connections that are open on one side
            if self._state is OPEN:
                self._protocol.eof_received()
                self.close()
            self._raw.close()

    def eof_received(self) -> bool:
        """Close: without the client's end of TLS, the connection was cut off."""
        return False

    def pause_writing(self) -> None:
        if self._state is not HANDSHAKE:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._state is not HANDSHAKE:
            self._protocol.resume_writing()

    def _decrypt(self, chunks: list[bytes]) -> bool:
        """Add what the client sent to `chunks`. Return whether it has ended TLS. Raise `SSLError` if it sent no TLS."""
        tls, incoming = self._ssl, self._incoming
        try:
            if self._state is HANDSHAKE:
                tls.do_handshake()
                self._stop_timer()
                self._flush()
                self._state = OPEN
                self._protocol.connection_made(cast(asyncio.Transport, self))
            # Bound: the bytes that the client has sent. Without the condition, each request ends with an exception.
            while incoming.pending or tls.pending():
                if not (chunk := tls.read(_PIECE_BYTES)):
                    return True
                chunks.append(chunk)
            return False
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLZeroReturnError:
            return True

    def _fail(self) -> None:
        """Close without an end of TLS, and write nothing more: OpenSSL cannot go on after an error."""
        if self._state is OPEN:
            self._state = CLOSING
        self._raw.close()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def write(self, data: Data) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Data]) -> None:
        if self._state is not OPEN:
            return
        try:
            for data in list_of_data:
                view, at = memoryview(data), 0
                while at < len(view):
                    at += self._ssl.write(view[at : at + _PIECE_BYTES])
                    if self._outgoing.pending >= _PIECE_BYTES:
                        self._flush()
        except ssl.SSLError:
            self._fail()
        self._flush()

    def close(self) -> None:
        """End TLS, and close when the client has ended it too, or after a while."""
        if self._state is HANDSHAKE:
            self._raw.close()
        elif self._state is OPEN:
            self._state = CLOSING
            try:
                self._ssl.unwrap()
            except ssl.SSLError:
                pass  # the client has not ended TLS yet
            self._flush()
            self._timer = asyncio.get_running_loop().call_later(_CLOSE_S, self._raw.close)
            if not self._raw.is_closing() and not self._raw.is_reading():
                self._raw.resume_reading()

    def is_closing(self) -> bool:
        return self._state is CLOSING or self._raw.is_closing()

    def can_write_eof(self) -> bool:
        return False

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

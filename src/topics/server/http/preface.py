"""The first bytes of a connection, which show whether its client speaks HTTP/2 (RFC 9113 section 3.4). Pure."""

from topics.server.http.service import ConnectionService, OpeningConnection

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def take_opening(connection: OpeningConnection, service: ConnectionService, data: bytes) -> bytes:
    """Return the first input of a connection if it is HTTP/1.1.

    Otherwise keep it in `opening`, hand the connection over once the preface is whole, and return no bytes.
    """
    data = (connection.opening or b"") + data
    if connection.served or not PREFACE.startswith(data[: len(PREFACE)]):
        connection.opening = None
        return data
    before, connection.opening = connection.opening, data
    if len(data) >= len(PREFACE) > len(before or b""):
        service.begin_http2(connection)
    return b""

"""The HTTP/2 framing of one connection (RFC 9113): the package `h2`, with the limits of this server."""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings

MAX_STREAMS = 256  # open at a time on one connection
MAX_FRAME_BYTES = 1 << 14  # the smallest maximum that the RFC allows, and what every client expects
WINDOW_BYTES = 1 << 20  # of request bodies that a client may send before it hears of the server
CLOSED_STREAMS = 512  # streams that have ended and that `h2` remembers, for frames that come late


class Frames(H2Connection):
    """The state machine of one connection. It gets one frame at a time."""

    MAX_CLOSED_STREAMS = CLOSED_STREAMS

    def __init__(self, max_header_bytes: int) -> None:
        super().__init__(H2Configuration(client_side=False, header_encoding=None))
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                SettingCodes.MAX_HEADER_LIST_SIZE: max_header_bytes,
                SettingCodes.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
            },
        )
        self.initiate_connection()
        # A head that is a little too large is answered with 431, and a much larger one ends the connection.
        self.decoder.max_header_list_size = 2 * max_header_bytes
        self.increment_flow_control_window(WINDOW_BYTES)

"""Input of one WebSocket: from bytes to commands, in turns of bounded frames, bytes and time."""

from collections.abc import Generator
from enum import Enum

import msgspec
import numpy as np
from wsproto import events
from wsproto.connection import Connection
from wsproto.frame_protocol import CloseReason

from topics import logs
from topics.errors import Code, TopicsError
from topics.model.records import Limits
from topics.model.watch import Addressed, Command, PlainPublish, Publish, RequestId
from topics.model.wire import MAX_PLAIN_BODY_BYTES
from topics.server.http.request.unknown_fields import Noted, Notes, RequestDecoder
from topics.server.http.request.write_request import LARGE_BYTES, decode_steps
from topics.server.limits.budget import MESSAGES, SMALL_BYTES
from topics.server.push.dispatcher import PushServices
from topics.server.push.websocket.commands import SocketClient

TEXT_WHOLE = 0x81  # the first byte of an unfragmented text message
MASKED = 0x80  # of the second byte
FIN, RESERVED, OPCODE, LENGTH = 0x80, 0x70, 0x0F, 0x7F
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
OPCODES = frozenset((CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG))
TWO_BYTES, EIGHT_BYTES = 126, 127  # lengths that announce a longer field
KEY_BYTES = 4
ENDLESS = 1 << 63
ARRAY_BYTES = 1024  # above it, numpy is faster than large numbers


class FrameSplitter:
    """Splits input into frames (RFC 6455 section 5.2): short text messages, and bytes for `wsproto`.

    Text messages in one frame are unmasked here, all of one turn together: that takes 1 µs each, where `wsproto` takes
    15. Everything else goes to `wsproto` as it came, split at the ends of frames.
    """

    __slots__ = ("_in_message", "_left_bytes")

    def __init__(self) -> None:
        self._left_bytes = 0  # of the present frame of `wsproto`; without end after an error
        self._in_message = False  # fragments of a message have come, and its last one has not

    def texts(self, data: bytes, at: int, until: int, most: int) -> list[tuple[bytes, int]]:
        """Return the short text messages that begin at `at` and follow each other, with their ends: at most `most`,
        and none that begins at `until` or later."""
        if self._left_bytes or self._in_message:
            return []
        start, last = at, min(until, len(data) - 1 - KEY_BYTES)  # where a frame without a text may begin
        masks: list[bytes] = []
        cuts: list[tuple[int, int]] = []
        while at < last and len(cuts) < most:
            key_at, length = at + 2, data[at + 1] - MASKED
            if data[at] != TEXT_WHOLE or not 0 <= length <= TWO_BYTES:
                break
            if length == TWO_BYTES:
                key_at, length = at + 4, int.from_bytes(data[at + 2 : at + 4], "big")
                if length < TWO_BYTES:
                    break  # `wsproto` refuses a length that takes more bytes than it needs
            text_at = key_at + KEY_BYTES
            end = text_at + length
            if end > len(data):
                break
            # A head masked with itself becomes zeros, which are ASCII.
            masks += data[at:text_at], (data[key_at:text_at] * (length // KEY_BYTES + 1))[:length]
            cuts.append((text_at - start, end))
            at = end
        if not cuts:
            return []
        whole = _unmask(data[start:at], b"".join(masks))
        texts = [(whole[low : end - start], end) for low, end in cuts]
        if not whole.isascii():
            for count, (text, _) in enumerate(texts):
                try:
                    text.decode()
                except UnicodeDecodeError:  # `wsproto` refuses what is not UTF-8
                    return texts[:count]
        return texts

    def skip(self, data: bytes, at: int, piece_bytes: int) -> int:
        """Return the end of the bytes for `wsproto`: at most `piece_bytes`, and none if more input is needed first."""
        size_bytes = len(data)
        if not self._left_bytes:
            may_wait = not self._in_message
            if size_bytes < at + 2 or not self._measure(data, at):
                return at
            is_short = may_wait and data[at] == TEXT_WHOLE and MASKED <= data[at + 1] <= MASKED + TWO_BYTES
            if is_short and size_bytes < at + self._left_bytes:  # `texts` takes it once it is whole
                self._left_bytes = 0
                return at
        end = min(size_bytes, at + piece_bytes, at + self._left_bytes)
        self._left_bytes -= end - at
        return end

    def _measure(self, data: bytes, at: int) -> bool:
        """Find out how long the frame at `at` is. Return False if more input is needed for that.

        After a head that `wsproto` refuses, it gets everything.
        """
        first, length = data[at], data[at + 1] & LENGTH
        opcode, is_last = first & OPCODE, bool(first & FIN)
        is_control = opcode >= CLOSE
        valid = opcode in OPCODES and not first & RESERVED and data[at + 1] & MASKED
        if not valid or (is_control and (not is_last or length >= TWO_BYTES)):
            self._left_bytes = ENDLESS
            return True
        begin = at + 2
        if length >= TWO_BYTES:
            begin += 2 if length == TWO_BYTES else 8
            length = int.from_bytes(data[at + 2 : begin], "big")
        if len(data) < begin:
            return False
        if not is_control:
            self._in_message = not is_last
        self._left_bytes = begin + KEY_BYTES + length - at
        return True


def _unmask(data: bytes, mask: bytes) -> bytes:
    """Return the data with the mask applied (RFC 6455 section 5.3): as large numbers, or as arrays if there is much."""
    if len(data) > ARRAY_BYTES:
        return (np.frombuffer(data, np.uint8) ^ np.frombuffer(mask, np.uint8)).tobytes()
    return (int.from_bytes(data, "little") ^ int.from_bytes(mask, "little")).to_bytes(len(data), "little")


_command_decoder: RequestDecoder[Command] = RequestDecoder(Command, writes=True)
_publish_decoder: RequestDecoder[Publish] = RequestDecoder(Publish, writes=True)
_decode_plain = msgspec.json.Decoder(PlainPublish).decode_lines
_decode_address = msgspec.json.Decoder(Addressed)


def decode_long(text: bytes, limits: Limits, noted: Noted) -> Generator[None, None, Command]:
    """Decode a long message in steps. Only a publish may be longer than the body of a request that is no write."""
    if len(text) <= MAX_PLAIN_BODY_BYTES and not text.startswith(b'{"op":"publish"'):
        return _command_decoder.decode(text, noted)
    try:
        publish: Publish = yield from decode_steps(_publish_decoder, text, limits, noted)
    except TopicsError as error:
        if error.detail is not None and error.detail.get("field") == "op":
            what = f"a message of more than {MAX_PLAIN_BODY_BYTES} bytes can only be a publish"
            raise TopicsError(Code.PAYLOAD_TOO_LARGE, what, detail={"max": MAX_PLAIN_BODY_BYTES}) from None
        raise
    return publish


def address_of(text: bytes) -> RequestId:
    """Return the `request_id` of an invalid command, or None if it has none or the message is long."""
    if len(text) > MAX_PLAIN_BODY_BYTES:
        return None
    try:
        return _decode_address.decode(text).request_id
    except (msgspec.MsgspecError, RecursionError):
        return None


log = logs.Log("websocket")

FRAMES_PER_TURN = 256
BYTES_PER_TURN = 64 << 10
TURN_NS = 2_000_000  # of work on one connection's input, after which the others come first
MAX_FRAGMENTS = 1 << 16  # of one message: fragments of 1 KiB are enough for the largest


class InputState(Enum):
    """What happens to a connection's input. The client is read from only in the first state."""

    READING = 0  # all input was handled
    HANDLING = 1  # input is being handled further up the stack
    NEXT_TURN = 2  # frames may be left, and the next turn is scheduled
    BLOCKED = 3  # frames may be left, and wait for `SocketInput.unblock`


class SocketInput:
    """Unhandled input, the message that is being assembled, and the long message that is being decoded."""

    __slots__ = (
        "_charged_bytes", "_client", "_decoding_bytes", "_ends_ns", "_fed", "_fragments",
        "_frames_left", "_max_bytes", "_services", "_splitter", "_state", "_unfed", "_ws", "decoding", "message",
    )  # fmt: skip

    def __init__(self, services: PushServices, ws: Connection, client: SocketClient) -> None:
        self._services = services
        self._ws = ws
        self._client = client
        self._max_bytes = services.runtime.settings.max_body_bytes
        self.message = bytearray()  # the fragments of a message so far
        self._fragments = 0  # of that message
        self._state = InputState.READING
        self._unfed = b""  # input that is not handled and that `_ws` has not seen
        self._splitter = FrameSplitter()
        self._fed = False  # `_ws` may have events
        self._frames_left = self._ends_ns = 0  # of this turn
        self.decoding: Generator[None, None, Command] | None = None  # of a long message
        self._decoding_bytes = 0
        self._charged_bytes = 0

    def received(self, data: bytes) -> None:
        self._unfed += data
        if self._state is InputState.READING:
            self._handle()
        self._charge()

    def unblock(self) -> None:
        """Handle more input in the next turn if nothing blocks the connection any more."""
        if self._state is InputState.BLOCKED and self._client.open and not self._client.is_blocked():
            self._read_later(InputState.NEXT_TURN)

    def give_up_input(self, error: TopicsError) -> None:
        """Drop all input and close the connection: the memory budget is exhausted."""
        self.drop()
        self._client.refuse(error, None)
        self._client.close(CloseReason.TRY_AGAIN_LATER, error.message)

    def drop(self) -> None:
        self.message, self._unfed = bytearray(), b""
        if self.decoding is not None:
            self.decoding.close()
        self._end_decoding()

    def _charge(self) -> None:
        """Charge the memory budget for unhandled input. May close the connection."""
        held_bytes = len(self.message) + len(self._unfed) + self._decoding_bytes
        if held_bytes != self._charged_bytes:
            self._services.budget.charge(MESSAGES, held_bytes - self._charged_bytes)
            self._charged_bytes = held_bytes
            self._services.budget.receive(self, held_bytes)

    def _handle(self) -> None:
        """Handle input for one turn: at most `FRAMES_PER_TURN` and `BYTES_PER_TURN`, and no frame after `TURN_NS`.

        The rest waits for the next turn, or for `unblock` if the connection is blocked.
        """
        self._state = InputState.HANDLING
        splitter = self._splitter
        self._frames_left = FRAMES_PER_TURN
        self._ends_ns = self._services.runtime.clock.monotonic_ns() + TURN_NS
        self._client.commands.publishes.clear()
        at, goes_on = 0, True
        # Bound: each round but the last handles a message or feeds a piece, and `BYTES_PER_TURN` of them end the turn.
        while goes_on:
            if self._fed and not self._take_events():
                break
            if (at >= BYTES_PER_TURN or not self._frames_left) and at < len(self._unfed):
                self._read_later(InputState.NEXT_TURN)
                break
            texts = splitter.texts(self._unfed, at, BYTES_PER_TURN, self._frames_left)
            for count, (text, end) in enumerate(texts):
                at = end
                if self._decode(text):  # a publish that has joined another changes nothing that a turn depends on
                    self._frames_left -= 1
                elif not self._goes_on():
                    goes_on = False
                    break
                elif not count and len(texts) > 2 and self._join_all([text for text, _ in texts[1:]]):
                    self._frames_left -= len(texts) - 1
                    at = texts[-1][1]
                    break
            if texts and (at < len(self._unfed) or not goes_on):
                continue
            end = splitter.skip(self._unfed, at, BYTES_PER_TURN)
            if end == at:
                self._state = InputState.READING
                self._client.hold(held=False)
                break
            self._ws.receive_data(self._unfed[at:end])
            self._fed = True
            at = end
        self._client.commands.publishes.clear()
        if at:
            self._unfed = self._unfed[at:]

    def _take_events(self) -> bool:
        """Handle the events of the input that `_ws` was fed. Return whether the turn goes on."""
        for event in self._ws.events():
            if isinstance(event, events.TextMessage):
                self._take_text(event)
            else:
                self._client.control(event)
            if not self._goes_on():
                return False
        self._fed = False
        return True

    def _goes_on(self) -> bool:
        """Count a frame. Return whether the turn goes on, and see to it that the input is handled later if not."""
        client = self._client
        if not client.open:
            return False
        if client.is_blocked():
            self._read_later(InputState.BLOCKED)
            return False
        self._frames_left -= 1
        if not self._frames_left or self._services.runtime.clock.monotonic_ns() > self._ends_ns:
            self._read_later(InputState.NEXT_TURN)
            return False
        return True

    def _next_turn(self) -> None:
        """Handle more input. A failure ends this connection and no other."""
        client = self._client
        if client.open and client.is_blocked():
            self._state = InputState.BLOCKED
        elif client.open:
            try:
                self._handle()
                self._charge()
            except Exception as error:
                log.failure("input_not_handled", error)
                client.close(CloseReason.INTERNAL_ERROR, "internal error")

    def _read_later(self, state: InputState) -> None:
        self._state = state
        if state is InputState.NEXT_TURN:
            self._services.runtime.loop.call_soon(self._next_turn)
        self._client.hold(held=True)

    def _take_text(self, event: events.TextMessage) -> None:
        """Assemble a message, bounded in bytes and in fragments, and decode it once it is complete."""
        text, message = event.data.encode(), self.message
        self._fragments += event.frame_finished
        if len(message) + len(text) > self._max_bytes:
            self._client.close(CloseReason.MESSAGE_TOO_BIG, "the message is too long")
        elif self._fragments > MAX_FRAGMENTS:
            self._client.close(CloseReason.MESSAGE_TOO_BIG, f"the message has more than {MAX_FRAGMENTS} fragments")
        elif not event.message_finished:
            message += text
        else:
            if message:
                message += text
                text = bytes(message)
                message.clear()
            self._fragments = 0
            self._decode(text)

    def _decode(self, text: bytes) -> bool:
        """Carry out a command. Return whether it was a publish that has joined another."""
        size_bytes, notes = len(text), Notes()
        try:
            if size_bytes > self._max_bytes:
                self._client.close(CloseReason.MESSAGE_TOO_BIG, "the message is too long")
                return False
            if size_bytes > SMALL_BYTES:
                self._services.budget.check(size_bytes)
            if size_bytes > LARGE_BYTES:
                self._decode_in_slices(text)
                return False
            command = _command_decoder.decode(text, notes)
        except TopicsError as error:
            self._client.refuse(error, address_of(text))
            return False
        return self._client.commands.begin(command, size_bytes, notes.warnings)

    def _join_all(self, texts: list[bytes]) -> bool:
        """Decode plain publishes together, and add them to the one before. Return False if nothing was done.

        Without line breaks in the texts, as many commands as texts are one from each.
        """
        if not self._client.commands.publishes:  # under pressure each needs a decision of its own
            return False
        whole, sizes = b"\n".join(texts), list(map(len, texts))
        if whole.count(b"\n") >= len(texts) or max(sizes) > min(SMALL_BYTES, self._max_bytes):
            return False
        try:
            commands = _decode_plain(whole)
        except (msgspec.MsgspecError, RecursionError):
            return False
        return len(commands) == len(texts) and self._client.commands.join(commands, sizes)

    def _decode_in_slices(self, text: bytes) -> None:
        """Decode a long message while other connections are served. Later messages of this one wait."""
        notes = Notes()

        def finish(command: Command) -> None:
            self._end_decoding()
            self._client.commands.begin(command, len(text), notes.warnings)
            self.unblock()

        def fail(error: TopicsError) -> None:
            self._end_decoding()
            self._client.refuse(error, address_of(text))
            self.unblock()

        self.decoding = decode_long(text, self._services.runtime.engine.limits, notes)
        self._decoding_bytes = len(text)
        self._services.slices.run(self.decoding, finish, fail)

    def _end_decoding(self) -> None:
        self.decoding, self._decoding_bytes = None, 0
        self._charge()

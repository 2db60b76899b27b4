"""The `Accept-Encoding` field of a request (RFC 9110 section 12.5.3). Pure."""


def accepts_gzip(accept_encoding: bytes | None) -> bool:
    """Return whether an Accept-Encoding value allows gzip: by name, or by `*`, with a weight above 0."""
    if not accept_encoding:
        return False
    wildcard = False
    for member in accept_encoding.lower().split(b","):
        coding, *parameters = (part.strip() for part in member.split(b";"))
        if coding in (b"gzip", b"x-gzip"):
            return _weight(parameters) > 0
        if coding == b"*":
            wildcard = _weight(parameters) > 0
    return wildcard


def _weight(parameters: list[bytes]) -> float:
    """Return the q value. A malformed one counts as 0: the client may have excluded the coding."""
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0

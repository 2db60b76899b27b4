"""Counters of reads, for the samples of the console. Handlers of hot paths add to them directly."""


class Traffic:
    """Reads since the process started."""

    __slots__ = ("reads", "records_read")

    def __init__(self) -> None:
        self.reads = 0  # answers to `diff`
        self.records_read = 0  # records in these answers

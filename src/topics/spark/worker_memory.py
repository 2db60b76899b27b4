"""Spare Spark's Python workers the repeated garbage collection of imported modules."""

from __future__ import annotations

import gc
from functools import cache


@cache
def freeze_imports() -> None:
    """Exclude the objects that exist at the first call from later garbage collections of this process.

    After each task a Python worker of Spark collects garbage, and visits the objects of all imported modules: 58,000
    objects, 10 to 38 ms. One query runs four such tasks: it creates the source, plans the read, and reads two
    partitions.
    """
    gc.freeze()

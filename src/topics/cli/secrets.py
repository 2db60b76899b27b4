"""Forgetting: once the settings are read, the process drops the plain text of every secret it was started with."""

import argparse
import ctypes
import os
import sys

from topics.cli.settings import DEST
from topics.config import SETTINGS, Setting

HIDDEN = "(hidden)"


def forget(args: argparse.Namespace) -> None:
    """Take the secrets out of the environment, the arguments and what was parsed from them.

    A child process then inherits none, and neither does `/proc/PID/environ` or a core dump show the variable. The
    arguments as the kernel keeps them stay visible, which is why the help of such a flag advises against it.
    """
    for row in SETTINGS:
        if row.secret:
            _forget_variable(row.variable)
            _forget_flag(row, args)


def _forget_variable(name: str) -> None:
    if name not in os.environ:
        return
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    where = getenv(name.encode())
    if where:
        # Removing a variable only unlinks it: the text itself stays on the stack that the process was started with.
        ctypes.memset(where, 0, len(ctypes.string_at(where)))
    del os.environ[name]


def _forget_flag(row: Setting, args: argparse.Namespace) -> None:
    if getattr(args, DEST + row.name, None) is None:
        return
    setattr(args, DEST + row.name, HIDDEN)
    for words in (sys.argv, sys.orig_argv):
        for at, word in enumerate(words):
            if word.startswith(row.flag + "="):
                words[at] = f"{row.flag}={HIDDEN}"
            elif at and words[at - 1] == row.flag:
                words[at] = HIDDEN

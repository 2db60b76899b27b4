"""Remove the plain text of secrets from the environment and the arguments after the settings are read."""

import argparse
import ctypes
import os
import sys

from topics.cli.servers.setting_flags import DEST
from topics.config import SETTINGS, Setting

HIDDEN = "(hidden)"


def forget(args: argparse.Namespace) -> None:
    """Remove the secrets from the environment, the arguments and the parsed options.

    Child processes do not inherit them, and `/proc/PID/environ` and core dumps do not show the variable. The kernel's
    copy of the arguments stays visible, so the help of these flags advises against them.
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
        # `del os.environ[name]` only unlinks the variable; its text stays in the initial stack of the process.
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

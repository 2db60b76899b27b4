"""Start a command as a fork of a template, see forks.py: `python -IS launch.py ADDRESS topics ls`.

Signals go to the fork, and this process ends as the fork ends. `_socket` is imported because `socket` takes as long as
the rest of the start.
"""

import os
import signal
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SO_SNDBUF, SOCK_SEQPACKET, SOL_SOCKET, socket
from array import array

PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def main(address: str, *argv: str) -> None:
    connection = socket(AF_UNIX, SOCK_SEQPACKET)
    connection.setsockopt(SOL_SOCKET, SO_SNDBUF, 1 << 20)
    connection.connect(address)
    variables = (f"{name}={value}" for name, value in os.environ.items())
    request = "\0".join([os.getcwd(), str(len(argv)), *argv, *variables]).encode("utf-8", "surrogateescape")
    connection.sendmsg([request], [(SOL_SOCKET, SCM_RIGHTS, array("i", [0, 1, 2]))])
    connection.recv(64)  # the process id

    def pass_on(number: int, _: object) -> None:
        try:
            connection.send(bytes([number]))
        except OSError:
            pass  # the fork has just ended

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    status = int(connection.recv(64) or -signal.SIGKILL)
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_DFL)
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)


main(*sys.argv[1:])

"""Whether a port of this machine is free: `python -m demo_project.demo.port PORT`. Needs no Django."""

import errno
import socket
import sys

HOST = "127.0.0.1"
DEFAULT = 8000


def problem(text: str) -> str | None:
    """Why a site cannot be started on port `text`, and what to do; None if it can."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        return f"PORT={text} is not a number from 1 to 65535. Nothing was started. Write: make serve PORT={DEFAULT + 1}"
    port = int(text)
    reason = _taken(port)
    if reason is None:
        return None
    free = next((other for other in range(max(port, 1023) + 1, 65536) if _taken(other) is None), None)
    hint = f", or choose another port: make serve PORT={free}" if free else ""
    if reason == errno.EADDRINUSE:
        return (
            f"Port {port} of {HOST} is in use by another program, perhaps by an earlier make serve. Nothing was "
            f"started. Stop that program{hint}"
        )
    return f"Port {port} of {HOST} cannot be used ({errno.errorcode.get(reason, reason)}). Nothing was started{hint}"


def _taken(port: int) -> int | None:
    with socket.socket() as probe:
        # As the site's own socket: connections of an earlier site that are closing do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return error.errno
    return None


if __name__ == "__main__":
    found = problem(sys.argv[1])
    if found:
        sys.exit(found)

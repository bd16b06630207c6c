"""Move the clock of a server while it runs, by libfaketime: https://github.com/wolfcw/libfaketime."""

import shutil
import subprocess
from pathlib import Path
from threading import Event

from tests.servers import packages
from tests.servers.control import Server

_PACKAGE, _LIBRARY = "libfaketime", "libfaketimeMT.so.1"


def library(log: Path) -> Path:
    """The library, installed if it is missing; for programs with threads."""
    found = _installed()
    if found is None:
        packages.install_package(_PACKAGE, log, Event())
        found = _installed()
    if found is None:
        raise RuntimeError(f"the package {_PACKAGE} is installed but holds no {_LIBRARY}, see {log}")
    return found


def _installed() -> Path | None:
    files = subprocess.run(["dpkg", "-L", _PACKAGE], capture_output=True, text=True, check=False).stdout.split()
    return next((Path(name) for name in files if name.endswith(_LIBRARY)), None)


def environment(preloaded: str, offset_file: str) -> dict[str, str]:
    """The environment of a program whose clock is to be moved. Its monotonic clock is not moved."""
    return {
        "LD_PRELOAD": preloaded,
        "FAKETIME_TIMESTAMP_FILE": offset_file,
        # The file is read again once a second.
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


class MovedClock:
    """The clock of a server that was started here. The server is restarted at both ends of a `with` block."""

    def __init__(self, server: Server) -> None:
        """Name the server."""
        self._server = server
        self._file = server.base / "clock"

    def __enter__(self) -> "MovedClock":
        """Restart the server with the library."""
        copy = self._server.base / _LIBRARY
        shutil.copy(library(self._server.base / "install.log"), copy)
        copy.chmod(0o755)
        self.move(0)
        self._server.stop()
        self._server.start(environment(self._server.inner(copy), self._server.inner(self._file)))
        return self

    def __exit__(self, *raised: object) -> None:
        """Restart the server without it."""
        self._server.restart()

    def move(self, seconds: int) -> None:
        """Set the clock so many seconds before (-) or after the real one; the server sees it within a second."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.chmod(0o644)
        new.rename(self._file)

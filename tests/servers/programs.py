"""Programs that tests run and that are no servers, from the packages of Debian or Ubuntu."""

import shutil
import tempfile
from pathlib import Path
from threading import Event

import pytest

from tests.servers import packages

_PACKAGES = {"zsh": "zsh", "promtool": "prometheus"}


def installed(name: str) -> str:
    """The path of a program, installed if it is missing; the test is skipped where nobody may install it."""
    found = shutil.which(name)
    if found is None and packages.can_install():
        log = Path(tempfile.gettempdir()) / f"jobqueue-install-{name}.log"
        packages.install_package(_PACKAGES[name], log, Event())
        found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: it is in the package {_PACKAGES[name]}")
    return found

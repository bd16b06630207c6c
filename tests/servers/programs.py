"""Programs that tests run and that are no servers, from the packages of Debian or Ubuntu."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from threading import Event

import pytest

from tests.servers import packages
from tests.servers.process import StepFailed

_PACKAGES = {"zsh": "zsh", "promtool": "prometheus", "chromium": "chromium", "chromedriver": "chromium-driver"}
#: what Ubuntu has as a snap only: apt-get would install a package that holds no program
_SNAPS = {"chromium", "chromedriver"}


def installed(name: str) -> str:
    """The path of a program, installed if it is missing; the test is skipped where nobody may install it."""
    found, reason = find_or_install(name)
    if found is None:
        pytest.skip(reason)
    return found


def install_korean_font() -> None:
    """Install a font for Korean where there is none and where we may; without one the pages show boxes."""
    fonts = shutil.which("fc-list")
    has_one = fonts is not None and subprocess.run([fonts, ":lang=ko"], capture_output=True, check=False).stdout
    if not has_one and packages.can_install():
        log = Path(tempfile.gettempdir()) / "jobqueue-install-fonts.log"
        packages.install_package("fonts-noto-cjk", log, Event())


def find_or_install(name: str) -> tuple[str | None, str]:
    """The path of a program, installed if it is missing and may be; or None and the reason why there is none."""
    package, found = _PACKAGES[name], shutil.which(name)
    if found is not None:
        return found, ""
    if name in _SNAPS and packages.is_ubuntu():
        return None, f"{name} is not installed: Ubuntu has it as a snap. Run: snap install chromium"
    if not packages.can_install():
        return None, f"{name} is not installed: it is in the package {package}, which only root of Debian may install"
    log = Path(tempfile.gettempdir()) / f"jobqueue-install-{name}.log"
    try:
        packages.install_package(package, log, Event())
    except StepFailed as error:
        return None, f"{name} is not installed: the package {package} could not be installed: {error}"
    return shutil.which(name), f"the package {package} is installed but has no {name}"

"""Programs that tests need are installed where they may be, and otherwise the reason is told."""

import pytest

from tests.servers import packages, programs
from tests.servers.process import StepFailed


@pytest.fixture
def missing(monkeypatch):
    """No program is there, and this is Debian."""
    monkeypatch.setattr(programs.shutil, "which", lambda name: None)
    monkeypatch.setattr(packages, "is_ubuntu", lambda: False)
    monkeypatch.setattr(packages, "can_install", lambda: True)
    return monkeypatch


def test_on_ubuntu_the_browser_is_a_snap_that_the_tests_do_not_install(missing):
    missing.setattr(packages, "is_ubuntu", lambda: True)
    missing.setattr(packages, "install_package", None)
    found, reason = programs.find_or_install("chromedriver")
    assert found is None
    assert "snap install chromium" in reason


def test_without_the_right_to_install_the_package_is_named(missing):
    missing.setattr(packages, "can_install", lambda: False)
    assert "package chromium-driver" in programs.find_or_install("chromedriver")[1]


def test_a_package_that_cannot_be_installed_skips_the_tests_and_says_why(missing):
    def refuse(name, log, cancel):
        raise StepFailed("no network")

    missing.setattr(packages, "install_package", refuse)
    with pytest.raises(pytest.skip.Exception, match="no network"):
        programs.installed("chromium")


def test_a_missing_program_is_installed_from_its_package(missing):
    installed = []
    missing.setattr(packages, "install_package", lambda name, log, cancel: installed.append(name))
    missing.setattr(programs.shutil, "which", lambda name: f"/usr/bin/{name}" if installed else None)
    assert programs.installed("chromedriver") == "/usr/bin/chromedriver"
    assert installed == ["chromium-driver"]

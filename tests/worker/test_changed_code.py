"""--reload notices every file that a developer changes, also one that could not be imported or was not there."""

import os
import sys
from importlib import invalidate_caches
from types import SimpleNamespace

import pytest

from jobqueue.tasks import registry
from jobqueue.worker.child import loop
from jobqueue.worker.child.loop import ChangedCode

pytestmark = pytest.mark.usefixtures("own_registry")


@pytest.fixture
def app(tmp_path, monkeypatch):
    """The folder of an app that is the only one with tasks.py; it can be imported under the name `fresh`."""
    folder = tmp_path / "fresh"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    config = SimpleNamespace(name="fresh", path=str(folder))
    monkeypatch.setattr(registry.apps, "get_app_configs", lambda: [config])
    monkeypatch.setattr(loop, "CODE_SECONDS", 0.0)
    invalidate_caches()
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "fresh"]:
        del sys.modules[name]


def write(path, text, at):
    path.write_text(text)
    os.utime(path, (at, at))


def test_a_tasks_module_that_could_not_be_imported_is_watched(app):
    write(app / "tasks.py", "def (", 1)
    assert list(registry.discover()) == []
    code = ChangedCode()
    assert not code.found()
    write(app / "tasks.py", "", 2)
    assert code.found()


def test_so_is_the_module_whose_error_stopped_the_import(app):
    write(app / "helpers.py", "import nothing_of_this_name", 1)
    write(app / "tasks.py", "import fresh.helpers", 1)
    assert list(registry.discover()) == []
    code = ChangedCode()
    assert not code.found()
    write(app / "helpers.py", "", 2)
    assert code.found()


def test_a_tasks_module_that_was_not_there_is_noticed(app):
    code = ChangedCode()
    assert not code.found()
    write(app / "tasks.py", "", 1)
    assert code.found()

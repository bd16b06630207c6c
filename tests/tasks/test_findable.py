"""A task that workers do not import is refused or reported, with the file where it belongs."""

import sys
import types

import pytest
from django.core.management import call_command
from django.test import override_settings

from jobqueue import checks, handler, task
from jobqueue.base.compat import InvalidTask
from jobqueue.base.compat import tasks as django_tasks
from jobqueue.exceptions import NotSupported
from jobqueue.models import Job
from jobqueue.tasks import registry
from jobqueue.tasks.discovery import workers_import
from tests.factories import claim_one, make_job, settle_run
from tests.marks import committed
from tests.memories import know_no_tasks

pytestmark = pytest.mark.django_db


def function(module, name="send"):
    def send(order_id=0):
        return order_id

    send.__module__, send.__qualname__ = module, name
    return send


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    know_no_tasks(monkeypatch)
    monkeypatch.setattr(registry, "_late", set())


def method(self, order_id):
    pass


method.__qualname__ = "Order.method"
method.__module__ = "tests.app.models"


class Callable:
    def __call__(self):
        pass


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (function("tests.app.views", "view.<locals>.send"), "is defined inside a function"),
        (function("tests.app.views", "<lambda>"), "a lambda has no name"),
        (method, "Order.method is a method"),
        (Callable(), "Callable objects have no name"),
    ],
    ids=["local", "lambda", "method", "object"],
)
def test_what_no_module_can_have_as_a_task_is_refused_with_the_file_for_tasks(wrong, words):
    with pytest.raises(InvalidTask, match=words):
        task(wrong)


def test_the_refusal_names_the_file_of_the_app():
    with pytest.raises(InvalidTask, match=r"at the top level of tests/app/tasks\.py\."):
        task(function("tests.app.views", "view.<locals>.send"))
    with pytest.raises(InvalidTask, match=r"tasks\.py of an app in INSTALLED_APPS\."):
        task(function("elsewhere", "view.<locals>.send"))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("__main__", "__main__.send"),
        ("__mp_main__", "__mp_main__.send"),
        ("builtins", "builtins.send"),
        ("django.core.management.commands.shell", "django.core.management.commands.shell.send"),
        (None, "send"),
    ],
)
def test_a_task_of_a_shell_or_script_is_told_once_at_enqueue(module, name, caplog, monkeypatch):
    monkeypatch.setattr("jobqueue.tasks.discovery._warned", set())
    made = task(function(module))
    made.enqueue(1)
    made.enqueue(2)
    (line,) = caplog.messages
    assert line.startswith(f"{name} is defined in a shell or script, which workers do not import")
    assert "put the task into tasks.py of an app in INSTALLED_APPS" in line


@pytest.fixture
def modules(monkeypatch):
    """Modules of the app shop, by name; they are imported after django.setup()."""
    monkeypatch.setattr("jobqueue.tasks.discovery._task_modules", lambda: ["shop.tasks"])
    monkeypatch.setattr(registry, "discover", lambda: [])

    def module(name, **content):
        made = types.ModuleType(name)
        vars(made).update(content)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    return module


def found():
    return [(message.id, f"{message.msg} {message.hint}") for message in checks.check_task_modules()]


def test_a_task_in_another_module_is_reported_by_check(modules):
    modules("shop.tasks", ordinary=task(function("shop.tasks")))
    modules("shop.views", send=task(function("shop.views")))
    ((id_, text),) = found()
    assert id_ == "jobqueue.W030"
    assert "Workers do not import shop.views, so they cannot run jobs of shop.views.send." in text
    assert "import shop.views there" in text


def test_a_task_in_a_module_that_tasks_py_imports_is_found(modules):
    mails = modules("shop.mails", send=task(function("shop.mails")))
    letters = task(function("shop.letters"))
    modules("shop.letters", letters=letters)
    modules("shop.parcels", mails=mails)
    modules("shop.tasks", letters=letters, parcels=sys.modules["shop.parcels"])
    assert found() == []


@pytest.mark.parametrize(
    ("source", "reported"),
    [
        ("from shop.mails import SUBJECT", False),
        ("from .mails import SUBJECT", False),
        ("from . import mails", False),
        ("from shop.lists import *", False),
        ("import shop.mails", False),
        ("import shop.lists.deep", False),
        ("import shop.parcels", True),
        ("from shop import parcels", True),
    ],
)
def test_a_module_is_found_by_what_the_source_of_tasks_py_imports(modules, tmp_path, source, reported):
    def file(name, text):
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        modules(name, __file__=str(path), __package__=name.rpartition(".")[0])

    file("shop.tasks", f"LIMIT = 5\n{source}\n")
    file("shop.lists", "from shop.mails import SUBJECT")
    file("shop.lists.deep", "")
    file("shop.parcels", "")
    modules("shop.mails", SUBJECT="Hello", send=task(function("shop.mails")))
    file("shop", "")
    assert bool(found()) == reported


def test_a_task_of_a_test_or_of_setup_is_not_reported(modules, monkeypatch):
    task(function("shop.tests.test_views"))
    task(function("shop.tasks.mail"))
    # In a context of its own: undo() would bring the tasks of other tests back as well.
    with monkeypatch.context() as starting:
        starting.setattr("django.apps.apps.ready", False)
        task(function("shop.models"))
    assert found() == []


@override_settings(TASKS={"default": {"BACKEND": f"{django_tasks.__name__}.backends.dummy.DummyBackend"}})
def test_without_our_backend_nothing_is_reported(modules):
    registry.add_task("shop.views.send", task(function("shop.views")))
    assert found() == []


def test_check_prints_it(modules, capsys):
    modules("shop.views", send=task(function("shop.views")))
    call_command("check", "--tag", "jobqueue")
    assert "jobqueue.W030" in capsys.readouterr().err


def test_the_reason_for_an_unknown_task_names_the_file():
    assert "tests/app/tasks.py, or import tests.app.views there" in workers_import("tests.app.views.send")
    assert "restart the worker" in workers_import("tests.app.tasks.gone")
    assert workers_import("None.send").endswith("put it into tasks.py of an app in INSTALLED_APPS")


@committed
def test_a_worker_that_does_not_know_a_task_says_where_it_belongs():
    job_id = make_job(task="tests.app.views.send", payload={"args": []})
    settle_run(claim_one())
    waiting = Job.objects.get(pk=job_id)
    assert "put it into tests/app/tasks.py" in waiting.wait_reason


def yields(payload):
    yield payload


async def yields_too(payload):
    yield payload


@pytest.mark.parametrize("func", [yields, yields_too])
def test_a_function_whose_body_nobody_would_run_is_refused(func, own_registry):
    with pytest.raises(InvalidTask, match=r"yields.*: the function yields, so a call of it runs nothing"):
        task(func)
    with pytest.raises(NotSupported, match="takes no generator function: nobody would run its body"):
        handler("generated")(func)

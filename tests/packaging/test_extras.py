"""The extras of pyproject.toml, and what hints tell people to install."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from django.apps import apps

from tests.docs.markdown import OTHERS, PAGES
from tests.marks import finding

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
#: what the tests, the checks of the code and the demo need; `compat` is django_tasks, which base/compat.py imports
OF_THE_REPOSITORY = {"test", "lint", "dev", "demo", "docs"}
#: a driver is imported by Django, by the engine's name in DATABASES
OF_DJANGO = {"mysql", "postgres"}
#: packages whose module has another name
MODULES = {"opentelemetry-api": "opentelemetry"}
SOURCES = sorted((ROOT / "jobqueue").rglob("*.py"))


def distribution(requirement: str) -> str:
    """The name before extras and versions."""
    return re.match(r"[\w.-]+", requirement)[0]


@pytest.mark.parametrize("extra", sorted(set(EXTRAS) - OF_THE_REPOSITORY - OF_DJANGO))
def test_the_package_imports_what_an_extra_installs(extra):
    code = "\n".join(path.read_text() for path in SOURCES)
    for requirement in EXTRAS[extra]:
        name = distribution(requirement)
        module = MODULES.get(name, name.replace("-", "_"))
        assert re.search(rf'(import|from) {module}\b|library\("{module}"', code), f"nothing imports {module}"


def test_hints_name_packages_of_the_extras_and_not_this_one_which_no_index_has():
    known = {distribution(requirement) for extra in EXTRAS.values() for requirement in extra}
    pages = [*PAGES, *OTHERS, *SOURCES]
    command = re.compile(r'pip install "?([a-z][\w-]*)')
    told = [(path, name) for path in pages for name in command.findall(path.read_text())]
    assert {"redis", "kombu", "confluent-kafka", "prometheus-client"} <= {name for _, name in told}
    assert [(path, name) for path, name in told if name not in known | {"mysqlclient"}] == []


def test_every_permission_of_a_model_is_asked_for_somewhere():
    code = "\n".join(path.read_text() for path in SOURCES if path.parts[-2] not in ("models", "migrations"))
    for model in apps.get_app_config("jobqueue").get_models():
        for codename, _ in model._meta.permissions:
            verb = codename.removesuffix(f"_{model._meta.model_name}")
            assert re.search(rf'{codename}"|permissions=\["{verb}"\]|has_{verb}_permission', code), codename


@finding("N7")
def test_no_hint_names_a_distribution_that_is_not_published():
    hint = re.compile(r"pip install [^\n`]*\"?jobqueue\[")
    assert [file for file in (*SOURCES, *PAGES, *OTHERS) if hint.search(Path(file).read_text())] == []

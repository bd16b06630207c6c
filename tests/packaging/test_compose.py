"""docker-compose.yml is what docker compose would accept, as far as the keys we use go."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml

from demo_project.demo.people import USER

ROOT = Path(__file__).parents[2]
STRINGS = {"type": "array", "items": {"type": "string"}}
DURATION = {"type": "string", "pattern": r"^\d+(ms|s|m)$"}
SERVICE = {
    "type": "object",
    "additionalProperties": False,
    "oneOf": [{"required": ["image"]}, {"required": ["build"]}],
    "properties": {
        "image": {"type": "string", "pattern": r"^[a-z0-9/._-]+:[\w.-]+$"},
        "build": {"const": "."},
        "command": STRINGS,
        "profiles": STRINGS,
        "stop_grace_period": DURATION,
        "environment": {"type": "object", "additionalProperties": {"type": "string"}},
        "ports": {"type": "array", "items": {"type": "string", "pattern": r"^127\.0\.0\.1:\d+:\d+$"}},
        "depends_on": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["condition"],
                "additionalProperties": False,
                "properties": {
                    "condition": {"enum": ["service_started", "service_healthy", "service_completed_successfully"]}
                },
            },
        },
        "healthcheck": {
            "type": "object",
            "required": ["test", "interval", "timeout", "retries"],
            "additionalProperties": False,
            "properties": {"test": STRINGS, "interval": DURATION, "timeout": DURATION, "retries": {"type": "integer"}},
        },
    },
}
SCHEMA = {
    "type": "object",
    "required": ["services"],
    "additionalProperties": False,
    "properties": {"services": {"type": "object", "additionalProperties": SERVICE}},
    "patternProperties": {"^x-": {}},
}


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_the_file_follows_the_schema(compose):
    jsonschema.validate(compose, SCHEMA)


def test_every_dependency_is_a_service_and_has_what_its_condition_needs(compose):
    services = compose["services"]
    for service in services.values():
        for name, need in service.get("depends_on", {}).items():
            assert name in services
            if need["condition"] == "service_healthy":
                assert "healthcheck" in services[name]


def test_the_servers_of_the_test_suite_are_there_at_a_zone_that_is_not_utc(compose):
    services = compose["services"]
    assert {"mysql", "mysql9", "mariadb", "postgres", "redis"} <= set(services)
    for name in ("mysql", "mysql9", "mariadb"):
        assert any(part.startswith("--default-time-zone=") for part in services[name]["command"])


def test_what_starts_without_a_profile_needs_nothing_that_does_not(compose):
    services = compose["services"]
    started = {name for name, service in services.items() if "profiles" not in service}
    assert started == {"mysql", "setup", "web", "worker"}
    hosts = {name for name in services if name not in started}
    for name in started:
        assert set(services[name].get("depends_on", {})) <= started
        for value in services[name].get("environment", {}).values():
            assert urlsplit(value).hostname not in hosts, f"{name}: {value}"


def test_the_user_that_the_page_names_is_made_before_the_site_starts(compose):
    command = compose["services"]["setup"]["command"]
    # tests/demo runs it.
    assert command[:4] == ["python", "manage.py", "samples", "--password"]
    password, option, address = command[4:]
    assert option == "--at"
    page = (ROOT / "docs" / "howto" / "docker.md").read_text()
    assert f"log in as **{USER}** with the password **{password}**" in " ".join(page.split())
    assert f"<{address}>" in page
    for name in ("web", "worker"):
        assert compose["services"][name]["depends_on"] == {"setup": {"condition": "service_completed_successfully"}}


def test_the_page_names_every_service_that_starts(compose):
    page = (ROOT / "docs" / "howto" / "docker.md").read_text()
    named = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert named == {name for name, service in compose["services"].items() if "profiles" not in service}


def test_the_build_sees_what_it_copies_and_no_secrets():
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert "*" in (ROOT / ".dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert sorted(name for names in copied for name in names.split()) == sorted(kept)
    assert all((ROOT / name).exists() for name in kept)

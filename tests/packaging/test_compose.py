"""docker-compose.yml is what docker compose would accept, as far as the keys we use go."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

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

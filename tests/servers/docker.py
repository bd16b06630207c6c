"""Servers run by `docker compose`, where a docker engine answers."""

import json
import shutil
import subprocess
from typing import Any

from tests.servers import net
from tests.servers.process import StepFailed, comes_true
from tests.servers.state import REPOSITORY, Record

_PORTS = {"mysql": 3306, "mariadb": 3306, "postgres": 5432, "redis": 6379}
_ENGINE_TIMEOUT_SECONDS = 20
_READY_TIMEOUT_SECONDS = 180
STARTED = "docker"
FOUND_RUNNING = "docker, was running"


def available() -> bool:
    """Tell whether a docker engine answers and the repository describes services for it."""
    if not shutil.which("docker") or not (REPOSITORY / "docker-compose.yml").exists():
        return False
    try:
        engine = subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=_ENGINE_TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return engine.returncode == 0


def _compose(*arguments: str) -> str:
    result = subprocess.run(
        ["docker", "compose", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise StepFailed(f"docker compose {arguments[0]}: {reason}")
    return result.stdout.strip()


def _account(kind: str, environment: dict[str, Any]) -> tuple[str, str]:
    prefix = kind.upper()
    if kind == "postgres":
        user, password = (
            environment.get("POSTGRES_USER", "postgres"),
            environment.get("POSTGRES_PASSWORD", ""),
        )
        return f"{user}:{password}", environment.get("POSTGRES_DB", user)
    # The tests make databases and kill sessions: root where its password is known.
    root = environment.get(f"{prefix}_ROOT_PASSWORD") or environment.get("MYSQL_ROOT_PASSWORD")
    user = "root" if root else environment.get(f"{prefix}_USER", "jobqueue")
    password = root or environment.get(f"{prefix}_PASSWORD", "")
    database = environment.get(f"{prefix}_DATABASE") or environment.get("MYSQL_DATABASE", "jobqueue")
    return f"{user}:{password}", database


def start(kind: str) -> Record:
    """Start one service and return its record."""
    running = bool(_compose("ps", "-q", "--status", "running", kind))
    _compose("up", "-d", kind)
    port = int(_compose("port", kind, str(_PORTS[kind])).rpartition(":")[2])
    if not comes_true(lambda: bool(net.ready_version(kind, port)), _READY_TIMEOUT_SECONDS, 0.5):
        raise StepFailed(f"docker compose service {kind} did not get ready on port {port}")
    if kind == "redis":
        url = f"redis://{net.HOST}:{port}/0"
    else:
        service = json.loads(_compose("config", "--format", "json"))["services"][kind]
        account, database = _account(kind, service.get("environment") or {})
        scheme = "postgres" if kind == "postgres" else "mysql"
        url = f"{scheme}://{account}@{net.HOST}:{port}/{database}"
    version = net.ready_version(kind, port)
    return Record(kind, FOUND_RUNNING if running else STARTED, url=url, port=port, version=version)


def stop(kind: str) -> None:
    """Stop one service and remove its data."""
    _compose("rm", "--stop", "--force", "-v", kind)

"""Other queues as optional columns. Each adapter is a module here and runs in an interpreter that has the product."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from benchmarks import effects, workers
from benchmarks.target import Target, environment

if TYPE_CHECKING:
    from benchmarks.bench import Bench

#: module of the adapter -> the databases of its column, and what it needs besides
ADAPTERS: dict[str, tuple[tuple[str, ...], str]] = {
    "django_tasks_db": (("mysql", "mariadb", "postgres"), "database"),
    "celery_redis": (("mysql", "mariadb", "postgres"), "redis"),
    "huey_redis": (("mysql", "mariadb", "postgres"), "redis"),
    "huey_sqlite": (("sqlite",), "file"),
    "dramatiq_redis": (("mysql",), "redis"),
    "rq_redis": (("mysql",), "redis"),
    "django_q2": (("mysql", "mariadb", "postgres"), "database"),
    "procrastinate_postgres": (("postgres",), "database"),
}


def interpreter() -> str:
    """The Python that has the peers: the one in .venv-bench, which scripts/bench.sh --peers makes, or else this one."""
    own = workers.ROOT / ".venv-bench/bin/python"
    return os.environ.get("BENCH_PEERS_PYTHON") or (str(own) if own.exists() else sys.executable)


class Peer:
    """An adapter, used through its command line."""

    def __init__(self, name: str, folder: Path, target: Target) -> None:
        self.name, self.folder, self.target = name, folder, target
        self.needs = ADAPTERS[name][1]
        self.broken = ""

    @property
    def env(self) -> dict[str, str]:
        """The environment that names the server, and the file of started jobs."""
        effects_path = str(self.folder / f"effects-{self.name}")
        redis = {"BENCH_REDIS_URL": os.environ.get("JOBQUEUE_TEST_REDIS_URL", "")}
        # Celery loads Django if the environment names settings.
        settings = {"DJANGO_SETTINGS_MODULE": "benchmarks.peers.django_settings" if self.needs == "database" else ""}
        paths = {"BENCH_FOLDER": str(self.folder), "BENCH_EFFECTS": effects_path}
        return {**environment(self.target), **redis, **settings, **paths}

    def command(self, *words: object) -> list[str]:
        """The adapter's command line."""
        return [interpreter(), "-m", "benchmarks.peers.run", self.name, *map(str, words)]

    def call(self, *words: object) -> Any:
        """Run a command of the adapter. Returns the JSON that it prints last."""
        env = {**os.environ, "PYTHONPATH": str(workers.ROOT), **self.env}
        done = subprocess.run(
            self.command(*words), cwd=workers.ROOT, env=env, capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{self.name} {words[0]}: {done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])

    def version(self) -> str | None:
        """The version of the product; None if it is not installed."""
        with suppress(RuntimeError):
            return str(self.call("version"))
        return None

    def attempt(self, call: Callable[[], Any]) -> Any:
        """call(), or None: a peer that fails must not stop the other columns."""
        if self.broken:
            return None
        try:
            return call()
        except Exception as error:
            self.broken = f"{type(error).__name__}: {error}"[-500:]
            print(f"{self.name} is left out from here on: {self.broken}", file=sys.stderr)
            return None

    def reset(self) -> None:
        """Empty the tables, the broker and the file of started jobs."""
        Path(self.env["BENCH_EFFECTS"]).unlink(missing_ok=True)
        self.call("reset")

    def produce(self, jobs: int) -> float:
        """Enqueue jobs one by one. Returns jobs a second."""
        self.reset()
        return jobs / float(self.call("enqueue", jobs)["seconds"])

    def drain(self, bench: Bench, jobs: int, count: int) -> float | None:
        """Jobs a second of `count` worker processes."""
        self.reset()
        self.call("enqueue", jobs)
        with _counting(self) as look, workers.running(self.command("work", count), self.env) as started:
            samples = workers.Watch(jobs, bench.plan.drain_seconds, look).until_done(started)
        self.reset()
        return workers.rate(samples, jobs)

    def latency(self, bench: Bench) -> list[float]:
        """Milliseconds from the return of an enqueue to the start of the job."""
        self.reset()
        with workers.running(self.command("work", 1), self.env):
            committed = self.call("arrive", bench.plan.latency_seconds)
        started = effects.read(Path(self.env["BENCH_EFFECTS"]))
        # A slow poller may be stopped before the last job has started; all others count.
        found = [(started[int(n)] - at) * 1000 for n, at in committed.items() if int(n) in started]
        return [max(0.0, ms) for ms in found]


class _counting:
    """Counts from a process of the adapter; for a broker that deletes jobs, the number of started jobs."""

    def __init__(self, peer: Peer) -> None:
        self.peer, self.latest = peer, 0
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Callable[[], int]:
        if self.peer.needs != "database":
            return lambda: effects.count(self.peer.env["BENCH_EFFECTS"])
        env = {**os.environ, "PYTHONPATH": str(workers.ROOT), **self.peer.env}
        self.process = subprocess.Popen(
            self.peer.command("watch"), cwd=workers.ROOT, env=env, stdout=subprocess.PIPE, text=True
        )
        Thread(target=self._read, daemon=True).start()
        return lambda: self.latest

    def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.latest = int(line)

    def __exit__(self, *error: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def available(target: Target, wanted: str, folder: Path) -> tuple[list[Peer], dict[str, str]]:
    """The peers of `wanted` ("auto", "none" or names) that can run with this target, and the versions found."""
    names = list(ADAPTERS) if wanted == "auto" else [name for name in wanted.split(",") if name and name != "none"]
    if unknown := set(names) - ADAPTERS.keys():
        raise SystemExit(f"no such peer: {', '.join(sorted(unknown))}; known: {', '.join(ADAPTERS)}")
    peers, versions = [], {}
    for name in names:
        kinds, needs = ADAPTERS[name]
        if target.kind not in kinds or (needs == "redis" and not os.environ.get("JOBQUEUE_TEST_REDIS_URL")):
            continue
        peer = Peer(name, folder, target)
        if (version := peer.version()) is not None:
            peers.append(peer)
            versions[name] = version
        elif wanted != "auto":
            raise SystemExit(f"{name} is not installed: sh scripts/bench.sh --peers installs it")
    return peers, versions

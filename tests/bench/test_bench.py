"""The benchmark itself works: a tiny run on the database under test gives a complete record, a page and charts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import report, stats, workers
from benchmarks.__main__ import keep
from tests.settings import VENDOR

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One tiny run of drain, enqueue, locks and outbox, without other queues: (record, page)."""
    folder = tmp_path_factory.mktemp("bench")
    page = folder / "docs" / "benchmarks.md"
    page.parent.mkdir()
    page.write_text(f"# Mine\n\nbefore\n\n{report.BEGIN}\nold\n{report.END}\n\nafter\n")
    command = ["--tiny", "--db", VENDOR, "--only", "drain,enqueue,locks,outbox,keys", "--peers", "none"]
    where = ["--page", str(page), "--results", str(folder / "results")]
    env = {name: value for name, value in os.environ.items() if not name.startswith("BENCH_")}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *command, *where],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "results" / "last.json").read_text()), page


def test_the_record_is_complete(run):
    record, _ = run
    found = record["databases"][VENDOR]
    assert found["errors"] == {}
    assert found["server"]["version"]
    assert found["server"]["durability"]
    assert set(found["measures"]) == {"drain", "enqueue", "locks", "outbox", "keys"}
    assert {"mutex", "lease_lock"} <= set(found["measures"]["locks"]["2 processes"])
    assert set(found["measures"]["enqueue"]["cpu"]) == {"enqueue()", "raw INSERT", "task.enqueue()"}
    drain = found["measures"]["drain"]["1 worker"]
    assert {"jobqueue", "raw, 100", "jobqueue, results", "jobqueue, delayed", "raw, one ack each"} <= set(drain)
    assert {"date", "commit", "cores", "python", "django", "plan"} <= set(record["run"])


def test_ratios_are_numbers(run):
    measures = run[0]["databases"][VENDOR]["measures"]
    ratios = [
        measures["drain"]["1 worker"]["jobqueue"]["ratio"],
        measures["drain"]["1 worker"]["jobqueue, results"]["ratio"],
        measures["enqueue"]["single"]["enqueue()"]["ratio"],
        measures["enqueue"]["bulk"]["enqueue_many()"]["ratio"],
        measures["outbox"]["publish"]["publish(), 200 keys"]["ratio"],
        measures["outbox"]["deliver"]["relay, no key"]["ratio"],
        measures["keys"]["drain"]["500 keys beside a hot one"]["ratio"],
    ]
    for ratio in ratios:
        assert ratio["n"] == 1
        assert 0 < ratio["min"] <= ratio["median"] <= ratio["max"]


def test_the_page_keeps_the_text_around_the_markers(run):
    _, page = run
    text = page.read_text()
    assert text.startswith("# Mine\n\nbefore\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text.split(report.BEGIN)[1].split(report.END)[0].split()
    assert "| 1 worker | jobqueue |" in text
    for name in ("bench-drain.svg", "bench-enqueue.svg"):
        assert f"img/{name}" in text
        assert (page.parent / "img" / name).read_text().startswith("<svg")


def test_a_run_of_some_measures_can_keep_the_others_with_their_dates():
    drain, growth, latency = {"who": 1}, {"who": 2}, {"who": 3}
    old = {"measures": {"drain": drain, "growth": growth}, "errors": {"huey": "broken"}, "peers": {"rq": "1"}}
    old["dates"] = {"drain": "old", "growth": "old", "huey": "old"}
    new = {"measures": {"drain": latency}, "errors": {}, "peers": {"huey": "2"}, "dates": {"drain": "new"}}
    record = {"databases": {"mysql": new}}
    keep({"databases": {"sqlite": old, "mysql": old}}, record)
    assert list(record["databases"]) == ["mysql", "sqlite"]
    assert record["databases"]["mysql"] == {
        "measures": {"drain": latency, "growth": growth},
        "errors": {},
        "peers": {"rq": "1", "huey": "2"},
        "dates": {"drain": "new", "growth": "old"},
    }
    assert record["databases"]["sqlite"] == old


def test_the_rate_leaves_out_start_and_end():
    samples = [(0.0, 0), (1.0, 0), (2.0, 100), (3.0, 300), (4.0, 500), (9.0, 600)]
    assert workers.rate(samples, 600) == 200
    assert workers.rate([(0.0, 0), (1.0, 500)], 500) == 500
    assert workers.rate([(0.0, 0)], 500) is None


def test_a_drain_that_was_cut_short_counts_to_its_last_sample():
    assert workers.rate([(0.0, 0), (1.0, 100), (2.0, 200), (3.0, 300), (6.0, 300)], 1000) == 40


def test_ratios_are_taken_round_by_round():
    found = stats.ratios([10, 40, None], [10, 20, 5])
    assert found == {"median": 1.5, "min": 1.0, "max": 2.0, "n": 2}
    assert stats.ratios([1], [None]) is None
    assert stats.percentiles([]) is None
    assert stats.percentiles(range(100)) == {"p50": 50, "p95": 95, "p99": 99}

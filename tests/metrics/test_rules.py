"""The alert rules and the dashboard name metrics that exist, and Prometheus' own tool accepts the rules."""

import json
import re
import subprocess

import pytest
import yaml

from jobqueue.lockstats.report import ServerCounts
from jobqueue.metrics import Figures, prometheus_text
from jobqueue.stats import QueueStats
from jobqueue.stats.ends import Ends, Kind
from jobqueue.worker.monitor.probe import Probe
from jobqueue.worker.shared.scoreboard import Scoreboard
from tests.docs.markdown import ROOT, code, pieces, table
from tests.marks import finding
from tests.servers.programs import installed

FOLDER = ROOT / "docs" / "monitoring"
RULES = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((FOLDER / "grafana.json").read_text())
PANELS = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]


@pytest.fixture(scope="module")
def promtool():
    """The program of Prometheus that checks and tests rules."""
    return installed("promtool")


def exposed():
    """The names of all samples of the view and of a probe, with the suffixes of counters and histograms."""
    queue = QueueStats("q", 1, 0, 0, 0, 0, 1.0, 0.0, 0, 0.0, False)
    text = prometheus_text(Figures([queue], {Kind("q", "t"): Ends(done=1)}, [], ServerCounts(0, 0.0, 0)))
    probe = Probe.__new__(Probe)
    probe._scoreboard = Scoreboard(1, 1)
    status, of_worker = probe._metrics()
    assert status == 200
    found = set(re.findall(r"^(jobqueue_\w+)", text + of_worker, re.MULTILINE))
    # Counters with labels have no sample until something is counted.
    return found | set(re.findall(r"^# TYPE (\S+) ", text + of_worker, re.MULTILINE))


def named(expression):
    return set(re.findall(r"\bjobqueue_\w+", expression))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_names_metrics_that_exist_and_a_page_that_exists(rule, settings):
    settings.JOBQUEUE = {}
    assert named(rule["expr"])
    assert named(rule["expr"]) <= exposed()
    assert (ROOT / rule["annotations"]["runbook"]).exists()
    assert rule["labels"]["severity"] in ("warning", "critical")


@pytest.mark.parametrize(("title", "expression"), PANELS)
def test_a_panel_names_metrics_that_exist(title, expression):
    assert named(expression)
    assert named(expression) <= exposed()


def test_the_dashboard_chooses_queues_by_a_label_that_exists():
    (queue,) = [one for one in DASHBOARD["templating"]["list"] if one["name"] == "queue"]
    assert queue["query"] == "label_values(jobqueue_jobs, queue)"
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_promtool_accepts_the_rules(promtool):
    done = subprocess.run([promtool, "check", "rules", FOLDER / "alerts.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{len(RULES)} rules found" in done.stdout


def series(name, values, **labels):
    inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return {"series": f"{name}{{{inside}}}", "values": values}


def fires(alert, at, **labels):
    """That an alert fires, whatever its words."""
    return {"alertname": alert, "eval_time": at, "exp_alerts": [{"exp_labels": labels}] if labels else []}


#: the query by which docs/howto/monitoring.md scales
SCALING = 'max(jobqueue_oldest_age_seconds{queue="mail"}) or vector(0)'


def test_the_page_scales_by_the_query_that_is_tested():
    page = ROOT / "docs" / "howto" / "monitoring.md"
    blocks = [piece for piece in pieces(page) if piece.kind in ("text", "yaml")]
    assert SCALING in [piece.text.strip() for piece in blocks if piece.kind == "text"]
    files = [yaml.safe_load(piece.text) for piece in blocks if piece.kind == "yaml"]
    (keda,) = [file for file in files if file.get("kind") == "ScaledObject"]
    assert [trigger["metadata"]["query"] for trigger in keda["spec"]["triggers"]] == [SCALING]
    (hpa,) = [file for file in files if file.get("kind") == "HorizontalPodAutoscaler"]
    assert [one["external"]["metric"]["name"] for one in hpa["spec"]["metrics"]] == ["jobqueue_oldest_age_seconds"]


def test_the_page_lists_every_alert():
    rows = table(ROOT / "docs" / "howto" / "monitoring.md", "Alerts")
    assert [code(row[0])[0] for row in rows] == [rule["alert"] for rule in RULES]


@finding("O-M13")
def test_the_query_by_which_workers_are_scaled_and_the_rules_give_what_they_should(promtool, tmp_path):
    """Two web processes answer scrapes, one queue has nothing to do, and one has no jobs at all."""
    given = [
        series("jobqueue_oldest_age_seconds", "0 0 300 600", queue="mail", instance="a"),
        series("jobqueue_oldest_age_seconds", "0 0 290 590", queue="mail", instance="b"),
        series("jobqueue_jobs_dead_total", "0x20 0+5x40", queue="mail", task="t", instance="a"),
        series("jobqueue_jobs_done_total", "0+100x60", queue="mail", task="t", instance="a"),
        series("jobqueue_jobs_retried_total", "0x60", queue="mail", task="t", instance="a"),
        series("jobqueue_jobs", "3x60", queue="mail", state="ready", instance="a"),
        series("jobqueue_jobs", "3x60", queue="stuck", state="ready", instance="a"),
        series("jobqueue_jobs_done_total", "7x60", queue="stuck", task="t", instance="a"),
        series("jobqueue_jobs_dead_total", "7x60", queue="stuck", task="t", instance="a"),
        series("jobqueue_ended_complete", "1x60", instance="a"),
    ]
    rules = tmp_path / "alerts.yml"
    # Words change with the values: what fires is compared, not what it says.
    text = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    for group in text["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]
    rules.write_text(yaml.safe_dump(text))
    scaled = [
        {"expr": SCALING, "eval_time": at, "exp_samples": [{"labels": "{}", "value": value}]}
        for at, value in (("1m", 0), ("2m", 300), ("3m", 600))
    ]
    nothing = SCALING.replace("mail", "empty")
    test = {
        "rule_files": ["alerts.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": given,
                "promql_expr_test": [
                    *scaled,
                    {"expr": nothing, "eval_time": "1m", "exp_samples": [{"labels": "{}", "value": 0}]},
                ],
                "alert_rule_test": [
                    fires("JobqueueOldJobs", "3m"),
                    fires("JobqueueOldJobs", "6m", severity="warning", queue="mail"),
                    fires("JobqueueDeadLetters", "20m"),
                    fires("JobqueueDeadLetters", "30m", severity="warning", queue="mail", task="t"),
                    fires("JobqueueNothingEnds", "40m", severity="warning", queue="stuck"),
                    fires("JobqueueErrorRate", "40m"),
                    fires("JobqueueNoMetrics", "40m"),
                ],
            },
            {
                # Too many pairs of queue and task: those of "zoo" are left out.
                "interval": "1m",
                "input_series": [
                    series("jobqueue_jobs", "3x60", queue="zoo", state="ready", instance="a"),
                    series("jobqueue_ended_complete", "0x60", instance="a"),
                ],
                "alert_rule_test": [
                    fires("JobqueueNothingEnds", "40m"),
                    fires("JobqueueFiguresLeftOut", "40m", severity="warning"),
                ],
            },
            {
                # The first failures of a task come between two scrapes; "old" is as it was, in a new web process.
                "interval": "1m",
                "input_series": [
                    series("jobqueue_jobs_dead_total", "_x30 50x30", queue="mail", task="new", instance="a"),
                    series("jobqueue_jobs_dead_total", "90x60", queue="mail", task="old", instance="a"),
                    series("jobqueue_jobs_dead_total", "_x30 90x30", queue="mail", task="old", instance="b"),
                    series("jobqueue_ended_complete", "1x60", instance="a"),
                ],
                "alert_rule_test": [
                    fires("JobqueueDeadLetters", "5m"),
                    fires("JobqueueDeadLetters", "35m", severity="warning", queue="mail", task="new"),
                    fires("JobqueueDeadLetters", "55m"),
                    fires("JobqueueFiguresLeftOut", "40m"),
                ],
            },
            {
                "interval": "1m",
                "input_series": [],
                "alert_rule_test": [fires("JobqueueNoMetrics", "6m", severity="critical")],
            },
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    done = subprocess.run(
        [promtool, "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""What the README shows a worker to print is what workers print."""

import logging
import re

import pytest

from jobqueue import log_format
from jobqueue.log_format import TextFormatter, on_attempt_ended
from tests.docs.markdown import ROOT, pieces

RUN = re.compile(
    r"\S+ (?P<outcome>\w+) +(?P<queue>\w+)  (?P<name>\S+)  #(?P<job_id>\d+)  try (?P<attempt>\d)/(?P<max_attempts>\d)"
    r"  wait (?P<wait>\d+)ms  ran (?P<run>\d+)ms(  again in (?P<delay>\d+)s  ConnectionRefusedError: (?P<error>.*))?"
)
(SHOWN,) = [piece.text.splitlines() for piece in pieces(ROOT / "README.md") if piece.kind == "text"]


@pytest.mark.parametrize("line", SHOWN[1:])
def test_a_run_is_told_in_the_readmes_words(line, caplog, monkeypatch):
    found = RUN.fullmatch(line)
    facts = {key: int(found[key]) for key in ("job_id", "attempt", "max_attempts")}
    facts |= {key: found[key] for key in ("outcome", "queue", "name")}
    facts |= {"wait_seconds": int(found["wait"]) / 1000, "run_seconds": int(found["run"]) / 1000}
    if found["error"]:
        facts |= {"error": ConnectionRefusedError(found["error"]), "delay_seconds": float(found["delay"])}
    records = []
    monkeypatch.setattr(log_format.jobs, "handle", records.append)
    monkeypatch.setattr(log_format.jobs, "level", logging.INFO)
    on_attempt_ended(object, **{"error": None, "delay_seconds": None, **facts})
    assert TextFormatter().format(records[0]).partition(" ")[2] == line.partition(" ")[2]


def test_the_worker_begins_in_the_readmes_words():
    assert SHOWN[0].partition(" ")[2] == "1 process x 4 threads, all queues; waiting for jobs, Ctrl-C stops"

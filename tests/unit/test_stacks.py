"""What a process tells of its threads holds no value, and has a size that is bounded."""

import json
import sys
import threading

from jobqueue.worker.run import stacks
from jobqueue.worker.run.stacks import FRAMES_MAX, Files, of_thread
from jobqueue.worker.shared.scoreboard import ANSWER_BYTES, StackRequest
from tests.patience import wait_until

SECRET = "4f9c-the-card-number"


def asked():
    requests = StackRequest()
    requests.ask()
    return requests


def test_names_of_generated_code_are_not_told():
    found = []
    made = {"note": lambda: found.append(sys._getframe(1))}
    exec(compile(f"def charge_{SECRET.replace('-', '_')}():\n    note()\n", SECRET, "exec"), made)
    made[f"charge_{SECRET.replace('-', '_')}"]()
    lines = [Files().line(frame) for frame in of_thread(found[0])]
    assert lines[-1] == "<generated>: -"
    assert lines[-2].startswith("tests/unit/test_stacks.py:")
    assert "4f9c" not in json.dumps(lines)


def test_an_answer_comes_at_the_second_look_and_once(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(stacks.time, "monotonic", lambda: clock[0])
    requests = asked()
    looks = stacks.StackLooks(requests, lambda: {"claim": "1040"})
    looks.look()
    assert requests.answer() is None
    clock[0] += stacks.BETWEEN_SECONDS
    looks.look()
    answer = json.loads(requests.answer())
    assert answer["answered"] is True
    assert answer["unreachable"] == {"claim": "1040"}
    assert not answer["cut"]
    assert requests.question == 0
    requests.clear()
    assert requests.answer() == b""


def test_a_deep_stack_keeps_its_innermost_frames():
    started, over, told = threading.Event(), threading.Event(), []

    def deep(n):
        if n:
            deep(n - 1)
        else:
            started.set()
            over.wait()

    thread = threading.Thread(target=deep, args=[200])
    thread.start()
    wait_until(started.is_set, what="the thread")
    told = [stack for (_, _, ident), stack in stacks._stacks().items() if ident == thread.ident]
    over.set()
    thread.join()
    assert len(told[0].lines) == FRAMES_MAX
    assert "threading.py" in told[0].lines[-1]


def test_an_answer_that_would_be_too_long_is_cut_behind_the_jobs(monkeypatch):
    many = {
        (number % 2 * number, 1, number): stacks.Stack((f"app/tasks.py:{number} {'x' * 500}",), None)
        for number in range(1000)
    }
    monkeypatch.setattr(stacks, "_stacks", lambda: many)
    monkeypatch.setattr(stacks, "BETWEEN_SECONDS", 0.0)
    requests = asked()
    looks = stacks.StackLooks(requests)
    looks.look()
    looks.look()
    text = requests.answer()
    answer = json.loads(text)
    assert ANSWER_BYTES / 2 < len(text) <= ANSWER_BYTES
    assert answer["cut"] is True
    assert all(place["jobs"] for place in answer["places"])

"""What tests of explanations ask."""

import json

from jobqueue.explain import explain_job, explain_queue
from jobqueue.explain.explanation import CODES


def checked(found):
    """`found`, if each explanation has all that the contract promises."""
    assert found
    for one in found:
        assert one.code in CODES
        assert isinstance(one.text, str)
        assert one.text.strip() == one.text != ""
        assert one.next_step.endswith((".", "runworker", "q"))
        assert "%(" not in one.text + one.next_step
        assert json.loads(json.dumps(one.evidence)) == one.evidence
    return found


def of_job(job_id):
    """explain_job(), checked."""
    return checked(explain_job(job_id))


def of_queue(queue="q"):
    """explain_queue(), checked."""
    return checked(explain_queue(queue))


def codes(found):
    """The codes, likeliest first."""
    return [one.code for one in found]


def codes_here(found):
    """The same without unknown_task, which depends on the handlers that the process has imported."""
    return [code for code in codes(found) if code != "unknown_task"]


def first(found, code):
    """The first explanation, whose code must be `code`."""
    assert found[0].code == code, found
    return found[0]


def named(found, code):
    """The only explanation with this code."""
    (one,) = [one for one in found if one.code == code]
    return one

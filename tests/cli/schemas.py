"""The JSON Schemas of what `manage.py jobs ... --json` prints, and a check of all that the tests let it print."""

import json
from functools import cache
from io import StringIO
from pathlib import Path

import jsonschema
import pytest
from django.core.management.base import OutputWrapper

from jobqueue.management.commands.jobs import Command

FOLDER = Path(__file__).parents[2] / "docs/reference/schemas"
#: sub-commands with verbs; without a verb, and with "list", they list
VERBS = {
    "redrives": ("stop",),
    "groups": ("show", "seal", "cancel", "resume"),
    "keys": ("resume",),
    "queues": ("pause", "resume", "drain", "limit"),
    "schedules": ("run", "enable", "disable", "preview", "import"),
}
_REDRIVE = ("fingerprint", "queue", "task", "cause", "everything", "limit", "canary", "rate")
#: schemas that an output has met since the test began
met = set()


def form_of(given):
    """The name of the schema for these parsed arguments: of the sub-command, or of one of its verbs or forms."""
    name = given["subcommand"]
    if name in VERBS:
        verb = next(iter(given["words"]), "list")
        return name if verb == "list" else f"{name}-{verb}"
    if name == "list" and given["groups"]:
        return "list-groups"
    if name == "doctor" and given["grants"] is not None:
        return "doctor-grants"
    if name == "retry" and any(given[option] for option in _REDRIVE):
        return "retry-redrive"
    if name == "note" and given["fingerprint"] is not None:
        return "note-print" if given["text"] is None else "note-write"
    return name


@cache
def validator(name):
    """It checks one output against the schema of this name; of instants also the format."""
    schema = json.loads((FOLDER / f"{name}.json").read_text())
    kind = jsonschema.Draft202012Validator
    kind.check_schema(schema)
    return kind(schema, format_checker=kind.FORMAT_CHECKER)


def check(given, text):
    """Raise ValidationError unless each line is what the schema says; `--watch` prints several."""
    for line in text.splitlines():
        name = form_of(given)
        validator(name).validate(json.loads(line))
        met.add(name)


class _Both:
    """Writes to `out`, and keeps a copy."""

    def __init__(self, out, copy):
        self._out, self._copy = out, copy

    def write(self, text):
        """Write to both."""
        self._copy.write(text)
        return self._out.write(text)

    def __getattr__(self, name):
        return getattr(self._out, name)


@pytest.fixture(scope="session", autouse=True)
def json_meets_its_schema():
    """Checks all that `jobs` prints with --json in this process against its schema."""
    run = Command._run

    def checked(self, using, given):
        if not given.get("json"):
            return run(self, using, given)
        out, copy = self.stdout, StringIO()
        self.stdout = OutputWrapper(_Both(out._out, copy))
        try:
            return run(self, using, given)
        finally:
            self.stdout = out
            check(given, copy.getvalue())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Command, "_run", checked)
        yield

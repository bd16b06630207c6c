"""Each sub-command and verb of `jobs` has a JSON Schema, which its real output meets."""

import json
from contextlib import suppress
from io import StringIO

import jsonschema
import pytest
from django.core.management import call_command

from jobqueue.cli import queues, schedules
from jobqueue.management.commands.jobs import SUBCOMMANDS
from tests.cli import schemas
from tests.cli.schema_examples import COMMITTED, EXAMPLES
from tests.marks import committed
from tests.settings import VENDOR

FILES = sorted(schemas.FOLDER.glob("*.json"))
#: lists that the server fills, or that say why it does not
OF_THE_SERVER = {"waits", "slow_statements", "problems", "grants"}


def names():
    """One for each sub-command, each verb, and each other form."""
    verbs = [f"{name}-{verb}" for name, own in schemas.VERBS.items() for verb in own]
    return {*SUBCOMMANDS, *verbs, "list-groups", "doctor-grants", "retry-redrive", "note-print", "note-write"}


def printed(name):
    """What the example of this schema prints with --json."""
    out = StringIO()
    with EXAMPLES[name](name) as words:
        # Whatever its exit status: of an alarm that fires it is 1.
        with suppress(SystemExit):
            call_command("jobs", *map(str, words), "--json", stdout=out)
    return json.loads(out.getvalue())


def empty_lists(schema, found, path=""):
    """The names of lists without an item, and of keys that are not there; of objects in a list, in all of them."""
    for choice in schema.get("oneOf", ()):
        if jsonschema.Draft202012Validator(choice).is_valid(found):
            yield from empty_lists(choice, found, path)
    if isinstance(found, list) and "items" in schema:
        inside = [{*empty_lists(schema["items"], one, path)} for one in found]
        yield from set.intersection(*inside) if inside else {path}
    if isinstance(found, dict):
        for name, own in schema.get("properties", {}).items():
            yield from empty_lists(own, found[name], name) if name in found else [name]


def objects(schema):
    """All objects that a schema describes."""
    if "properties" in schema:
        yield schema
    for part in (*schema.get("oneOf", ()), schema.get("items"), *schema.get("properties", {}).values()):
        if part:
            yield from objects(part)


def test_there_is_a_schema_and_an_example_for_each_sub_command_and_verb():
    assert {file.stem for file in FILES} == names() == set(EXAMPLES)


def test_the_verbs_are_those_of_the_commands():
    for module in (queues, schedules):
        name = module.__name__.rpartition(".")[2]
        assert {*schemas.VERBS[name], "list"} == {form.split()[0] for form in module.FORMS}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_schema_allows_no_other_keys_and_describes_each(file):
    schema = json.loads(file.read_text())
    assert schema["$schema"] == jsonschema.Draft202012Validator.META_SCHEMA["$id"]
    assert schemas.validator(file.stem)
    found = list(objects(schema))
    assert found
    for one in found:
        assert one["additionalProperties"] is False
        assert all(own["description"].endswith(".") for own in one["properties"].values())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=committed if name in COMMITTED else pytest.mark.django_db) for name in EXAMPLES]
)
@pytest.mark.usefixtures("own_registry")
def test_real_output_meets_its_schema_with_all_lists_filled(name):
    schemas.met.clear()
    found = printed(name)
    assert schemas.met == {name}
    schema = json.loads((schemas.FOLDER / f"{name}.json").read_text())
    lacking = {*empty_lists(schema, found)} - {"job_ids", "fingerprint", "queue", "task", "cause"}
    assert lacking <= OF_THE_SERVER
    if name == "locks" and VENDOR != "sqlite":
        assert found["waits"]


@pytest.mark.django_db
def test_an_output_with_another_key_fails_the_test(monkeypatch):
    monkeypatch.setattr("jobqueue.cli.stats.snapshot", lambda **given: [])
    monkeypatch.setattr("jobqueue.cli.output.mask_texts", lambda document: document | {"more": 1})
    with pytest.raises(jsonschema.ValidationError, match="more"):
        call_command("jobs", "stats", "--json", stdout=StringIO())

"""Writes docs/reference/schema.md: JOBQUEUE_TEST_DB=mysql python -m tests.docs.schema, once for each database.

Each run replaces the part of its own database by what `manage.py sqlmigrate` says there.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

from tests.docs.markdown import ROOT

PAGE = ROOT / "docs" / "reference" / "schema.md"
MIGRATION = "0001"
TITLES = {"mysql": "MySQL", "mariadb": "MariaDB", "postgres": "PostgreSQL", "sqlite": "SQLite"}
_NAME = re.compile(r"(?:CREATE TABLE|ALTER TABLE|CREATE (?:UNIQUE )?INDEX \S+ ON) [`\"]?(\w+)")


def ddl() -> str:
    """The statements that make the tables on the default database, table by table, as people read them."""
    from django.core.management import call_command

    out = io.StringIO()
    call_command("sqlmigrate", "jobqueue", MIGRATION, stdout=out, no_color=True)
    tables: dict[str, list[str]] = {}
    for line in out.getvalue().splitlines():
        if found := _NAME.match(line):
            tables.setdefault(found[1], []).append(shown(line))
    return "\n\n".join("\n".join(statements) for statements in tables.values())


def shown(statement: str) -> str:
    """A CREATE TABLE with a line for each column; others as they are."""
    if not statement.startswith("CREATE TABLE"):
        return statement
    head, _, rest = statement.partition("(")
    body, end = rest.rpartition(")")[0], rest.rpartition(")")[2]
    return f"{head.rstrip()} (\n" + ",\n".join(f"    {part}" for part in parts(body)) + f"\n){end}"


def parts(body: str) -> Iterator[str]:
    """What stands between the commas outside of parentheses."""
    depth, begin = 0, 0
    for position, character in enumerate(body):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            yield body[begin:position].strip()
            begin = position + 1
    yield body[begin:].strip()


def section(page: str, database: str) -> str:
    """The statements on the page for `database`."""
    found = re.search(rf"^## {TITLES[database]}\n\n```sql\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def main() -> None:
    """Write the part of this process's database."""
    import django

    django.setup()
    from tests.settings import VENDOR

    page = PAGE.read_text()
    block = f"## {TITLES[VENDOR]}\n\n```sql\n{ddl()}\n```"
    old = re.compile(rf"^## {TITLES[VENDOR]}\n\n```sql\n.*?\n```$", re.MULTILINE | re.DOTALL)
    PAGE.write_text(old.sub(lambda _: block, page) if old.search(page) else f"{page.rstrip()}\n\n{block}\n")


if __name__ == "__main__":
    main()

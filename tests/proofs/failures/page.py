"""python -m tests.proofs.failures.page BASE DB FILE...: the page of these proofs from the figures in FILEs.

A FILE whose name ends in -statements is a table of tests.architecture.statements; the others have a figure a line.
"""

from __future__ import annotations

import sys

from tests.proofs.parts_page import commits_of, parts_of, print_commits
from tests.proofs.report import print_page, print_tables

UNUSED = """\
## Queues that use none of it send the same statements, and read the same rows.

The verbs at commit `{base}`, the last one before there {was}, and now. A verb of 100 jobs
sends and reads this for all of them together. Rows are those that the server itself counts (`Handler_read_*` of the
session on MySQL and MariaDB, `seq_tup_read` and `idx_tup_fetch` on PostgreSQL; SQLite counts none). To run it again:

```sh
.venv/bin/python -m tests.servers run -- .venv/bin/python -m tests.architecture.statements {base}
```
"""
SPEED = """
## Queues that use none of it are as fast.

Fifteen pairs of runs, the files of that commit and those of now in turn. The command prints the median of the pairs and
its interval, and fails if a loss over 5 % cannot be noise:

```sh
make bench-check BASE={base} DB=mysql
make bench-check BASE={base} DB=mariadb
make bench-check BASE={base} DB=postgres
make bench-check BASE={base} DB=sqlite
```
"""


def print_with_statements(issue: str, was: str, base: str, db: str, *files: str) -> None:
    """Print the page of `issue`; at `base` there `was` nothing of it yet.

    Parts that are missing because they failed or were broken off are not in it.
    """
    parts = [part for part in parts_of(files) if part.path.stat().st_size]
    tables = [part.path.read_text().splitlines() for part in parts if part.name == "statements"]
    print_page(issue, [], db, commits_of(parts))
    print_commits(parts)
    print_tables([line for part in parts if part.name != "statements" for line in part.lines()])
    print(UNUSED.format(base=base, was=was))
    for number, table in enumerate(tables):
        print("\n".join(table if number == 0 else table[2:]))
    print(SPEED.format(base=base), end="")


if __name__ == "__main__":
    print_with_statements("failures", "were causes, outcomes and redrives", *sys.argv[1:])

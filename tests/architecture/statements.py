"""python -m tests.architecture.statements COMMIT [DATABASE...]: the statements of each verb at a commit and now.

Uses the servers that JOBQUEUE_TEST_<KIND>_URL names (see tests.servers), and SQLite. A verb must not need more
statements than before, nor read more rows by the server's own count (SQLite has none): the exit status is 1 if one
does. "same" says that the statements are the same word for word, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.architecture.house import ROOT
from tests.patience import patient
from tests.proofs.figures import write
from tests.proofs.history.trees import unpack
from tests.selection.statement_map import DATABASES
from tests.servers.state import url_variable

SAYS = "Queues that use none of it send the same statements, and read the same rows, as at commit {commit}."
COLUMNS = ("verb", "statements then", "statements now", "their words", "rows read then", "rows read now")
#: the statements of a call, and the rows that the server read for them
Sent = tuple[list[str], int | None]


def statements(root: Path, url: str | None) -> dict[str, Sent]:
    """Verb -> the statements that the package below `root` sends for it, and the rows that they read."""
    env = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"}
    env |= {"DATABASE_URL": url} if url else {}
    command = [sys.executable, str(Path(__file__).with_name("hops.py")), "--statements", str(root)]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=patient(), check=False)
    if done.returncode:
        raise RuntimeError(f"the statements of {root} could not be traced:\n{done.stderr[-2000:]}")
    found: dict[str, list] = json.loads(done.stdout)
    return {verb: (sent, rows) for verb, (sent, rows) in found.items()}


def main(commit: str, *databases: str) -> int:
    """Print one table for all databases; 1 if a verb sends more statements, or reads more rows, than at `commit`."""
    more, lines = False, []
    print(f"| database | verb | {commit} | now | | rows at {commit} | rows now |")
    print("| --- | --- | ---: | ---: | --- | ---: | ---: |")
    with tempfile.TemporaryDirectory() as name:
        unpack(commit, Path(name), "jobqueue")
        for database in databases or DATABASES:
            url = os.environ.get(url_variable(database))
            if url is None and database != "sqlite":
                continue
            before, now = statements(Path(name), url), statements(ROOT, url)
            for verb, (sent, rows) in now.items():
                sent_before, rows_before = before[verb]
                same = "same" if sent_before == sent else ""
                figures = ["-" if count is None else count for count in (rows_before, rows)]
                print(
                    f"| {database} | {verb} | {len(sent_before)} | {len(sent)} | {same} | {figures[0]} | {figures[1]} |"
                )
                before_and_now = (len(sent_before), len(sent), same or "other words", *figures)
                lines.append((database, dict(zip(COLUMNS, (verb, *before_and_now), strict=True))))
                more = more or len(sent) > len(sent_before) or (rows or 0) > (rows_before or 0)
    for database, row in lines:
        write(SAYS.format(commit=commit), database, [row])
    return int(more)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

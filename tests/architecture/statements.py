"""python -m tests.architecture.statements COMMIT: the statements of each verb at a commit and now, on each database.

Uses the servers that JOBQUEUE_TEST_<KIND>_URL names (see tests.servers), and SQLite. A verb must not need more
statements than before: the exit status is 1 if one does. "same" says that they are the same word for word, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.architecture.house import ROOT
from tests.matrix import DATABASES
from tests.proofs.history.trees import unpack
from tests.servers.state import url_variable


def statements(root: Path, url: str | None) -> dict[str, list[str]]:
    """Verb -> the statements that the package below `root` sends for it."""
    env = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"}
    env |= {"DATABASE_URL": url} if url else {}
    command = [sys.executable, str(Path(__file__).with_name("hops.py")), "--statements", str(root)]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"the statements of {root} could not be traced:\n{done.stderr[-2000:]}")
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def main(commit: str) -> int:
    """Print one table for all databases; 1 if a verb sends more statements than at `commit`."""
    more = False
    print(f"| database | verb | {commit} | now | |\n| --- | --- | ---: | ---: | --- |")
    with tempfile.TemporaryDirectory() as name:
        unpack(commit, Path(name), "jobqueue")
        for database in DATABASES:
            url = os.environ.get(url_variable(database))
            if url is None and database != "sqlite":
                continue
            before, now = statements(Path(name), url), statements(ROOT, url)
            for verb in now:
                same = "same" if before[verb] == now[verb] else ""
                print(f"| {database} | {verb} | {len(before[verb])} | {len(now[verb])} | {same} |")
                more = more or len(now[verb]) > len(before[verb])
    return int(more)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

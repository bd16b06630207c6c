"""python -m tests.proofs.run [PAGE] [DATABASE]: prove what tests.proofs.table promises, and write the pages.

The parts run one after the other, because rates are measured. What has passed is kept in .prove/ under a hash of what
it proves: a run that was broken off goes on where it was, also after commits that change nothing of that. A part that
takes longer than its minutes is ended and named in the last lines, as is one that fails; neither is on its page.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from tests.proofs import index
from tests.proofs.freshness import fingerprint, git
from tests.proofs.model import ALL, DATABASES, ROOT, Page, Part
from tests.proofs.page import Result, text_of
from tests.proofs.table import PAGES

KEPT = ROOT / ".prove"
#: they write their page themselves
BENCHMARKS = "benchmarks"
#: for tests and servers to end what they have started
GRACE_SECONDS = 60


def kept(page: Page, part: Part, database: str) -> Path:
    """The file of what a part has measured on a database; it is there if that needs not be done again."""
    return KEPT / page.name / f"{part.name}-{database}-{fingerprint(page.depends(part))}.json"


def planned(page: Page, database: str | None) -> Iterator[tuple[Part, str]]:
    """The parts of a page with the databases on which they run; those that need all servers run in any case."""
    for part in page.parts:
        for on in part.minutes:
            if database in (None, on) or on == ALL:
                yield part, on


def command(part: Part, database: str) -> list[str]:
    """What runs a part, with the servers that it needs."""
    servers = {"sqlite": "redis", ALL: "mysql,mariadb,postgres,redis"}.get(database, f"{database},redis")
    with_servers = ["-m", "tests.servers", "run", "--only", servers, "--", sys.executable]
    return [sys.executable, *with_servers, *part.arguments(database)]


def prove(page: Page, part: Part, database: str) -> str:
    """Run a part and keep what it has measured; "" or why there is nothing to keep."""
    ended = kept(page, part, database)
    if changed := git("status", "--porcelain", "--", *(path for path in page.depends(part) if (ROOT / path).exists())):
        return f"not run, as its page must name a commit; commit this first: {' '.join(changed.split())}"
    ended.parent.mkdir(parents=True, exist_ok=True)
    out = ended.with_suffix(".part")
    out.write_text("")
    env = {**os.environ, "JOBQUEUE_PROVE": "1", "JOBQUEUE_TEST_FULL": "1", "JOBQUEUE_PROVE_OUT": str(out)}
    if database != ALL:
        env["JOBQUEUE_TEST_DB"] = database
    begun = time.monotonic()
    failed = run(command(part, database), env, part.minutes[database])
    minutes = round((time.monotonic() - begun) / 60, 1)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    if not failed and not lines and page.writer != BENCHMARKS:
        failed = "it has measured nothing: were its tests skipped?"
    if not failed:
        commit = git("rev-parse", "--short=12", "HEAD").strip()
        result = Result(part.name, database, commit, f"{datetime.now(UTC):%Y-%m-%d}", minutes, lines)
        ended.write_text(json.dumps(asdict(result)))
    out.unlink()
    return failed


def run(words: list[str], env: dict[str, str], minutes: float) -> str:
    """Run a command for so many minutes at most; "" or how it failed."""
    process = subprocess.Popen(words, cwd=ROOT, env=env, start_new_session=True)
    try:
        status = process.wait(60 * minutes)
    except subprocess.TimeoutExpired:
        _end(process)
        return f"ended, as it took longer than {minutes} minutes"
    except BaseException:
        _end(process)
        raise
    return f"failed with status {status}" if status else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    # Ctrl-C for all of them: tests end their workers, and then the servers are stopped.
    for signum, seconds in ((signal.SIGINT, GRACE_SECONDS), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return


def write(page: Page) -> None:
    """Write a page from what is kept of its parts, and whatever else shows its figures."""
    files = [path for part, on in planned(page, None) if (path := kept(page, part, on)).exists()]
    if not files:
        return
    if page.writer != BENCHMARKS:
        (ROOT / page.file).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / page.file).write_text(text_of(page, [Result.read(path) for path in files]))
        if page.writer:
            subprocess.run([sys.executable, "-m", page.writer, *map(str, files)], cwd=ROOT, check=True)
    print(f"{page.file} written")


def main(arguments: list[str]) -> int:
    """Exit status 1 if a part failed or took too long."""
    parser = argparse.ArgumentParser(prog="python -m tests.proofs.run", description=__doc__)
    parser.add_argument("page", nargs="?", default="", choices=["", *PAGES], metavar="PAGE", help=", ".join(PAGES))
    parser.add_argument("database", nargs="?", default="", choices=["", *DATABASES], metavar="DATABASE")
    options = parser.parse_args(arguments)
    failed = []
    for page in [PAGES[options.page]] if options.page else PAGES.values():
        for part, database in planned(page, options.database or None):
            if not kept(page, part, database).exists():
                name = f"{page.name}: {part.name} on {database}"
                print(f"== {name}, {part.minutes[database]} minutes at most", flush=True)
                why = prove(page, part, database)
                failed += [f"{name}: {why}"] if why else []
        write(page)
    (ROOT / index.FILE).write_text(index.text())
    print(f"{index.FILE} written")
    print("\n".join(failed))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

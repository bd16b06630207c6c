"""python -m tests.browser.screenshots: pictures of the admin for the pages, over the rows of tests.browser.demo_rows.

Writes docs/img/admin-NAME.png: English, light, 1400 pixels wide. Of the pages that have more to show also
admin-NAME-dark.png, admin-NAME-ko.png (Korean), admin-NAME-phone.png (375 pixels) and admin-NAME-phone-ko-dark.png.
A page that the admin does not have is left out, and named. --only jobs,job takes these alone; --every writes every
combination of every page, to look at; --folder says where to.
"""

import argparse
import logging
import os
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import NamedTuple

IMAGES = Path(__file__).parents[2] / "docs" / "img"
BYTES_MAX = 150_000
WIDE, PHONE, HEIGHT_MIN = (1400, 1000), (375, 812), 480
_BOTTOM = """
const ends = ["#content", "#nav-sidebar .module:last-of-type"].flatMap(name => [...document.querySelectorAll(name)]);
return Math.ceil(Math.max(...ends.map(one => one.getBoundingClientRect().bottom)));
"""


class Look(NamedTuple):
    """How a page is looked at."""

    suffix: str
    language: str = "en"
    theme: str = "light"
    window: tuple[int, int] = WIDE


PLAIN = Look("")
LOOKS = (
    PLAIN,
    Look("-dark", theme="dark"),
    Look("-ko", "ko"),
    Look("-phone", window=PHONE),
    Look("-phone-ko-dark", "ko", "dark", PHONE),
)
EVERY = [
    Look(f"-{language}-{theme}-{window[0]}", language, theme, window)
    for language, theme, window in product(("en", "ko"), ("light", "dark"), (WIDE, PHONE))
]
#: name of the picture -> names of the address, of which the first that exists is taken
ADDRESSES = {
    "overview": ("jobqueue_overview", "app_list"),
    "jobs": ("jobqueue_job_changelist",),
    "job": ("jobqueue_job_change",),
    "queues": ("jobqueue_flowrule_changelist",),
    "queue": ("jobqueue_flowrule_queue",),
    "dead-letters": ("jobqueue_redrive_changelist",),
    "redrive": ("jobqueue_redrive_new",),
    "workers": ("jobqueue_worker_changelist",),
    "schedules": ("jobqueue_schedule_changelist",),
    "groups": ("jobqueue_jobgroup_changelist",),
    "workflow": ("jobqueue_jobgroup_change",),
    "outbox": ("jobqueue_outboxevent_changelist",),
    "locks": ("jobqueue_lockstat_changelist",),
    "metrics": ("jobqueue_metrics",),
    "audit": ("jobqueue_auditevent_changelist",),
    "settings": ("jobqueue_settings",),
}
#: pictures of the way from the overview to the failing task, in every look
IN_EVERY_LOOK = {"overview", "jobs", "job", "dead-letters"}
#: URL name -> its query
QUERIES = {"jobqueue_flowrule_queue": {"queue": "imports"}, "jobqueue_metrics": {"range": "24h"}}


def main(arguments):
    """Exit status 0 if all pictures were written, 1 if there is no browser or a picture is too large."""
    parser = argparse.ArgumentParser(prog="python -m tests.browser.screenshots")
    parser.add_argument("--folder", type=Path, default=IMAGES)
    parser.add_argument("--only", default="", help="names with commas between them")
    parser.add_argument("--every", action="store_true")
    given = parser.parse_args(arguments)
    wanted = given.only.split(",") if given.only else list(ADDRESSES)
    if unknown := set(wanted) - set(ADDRESSES):
        parser.error(f"no picture is called {', '.join(sorted(unknown))}; there are {', '.join(ADDRESSES)}")
    output = given.folder.resolve()
    with tempfile.TemporaryDirectory(prefix="jobqueue-pictures-") as folder:
        _set_up(folder)
        return _draw(output, wanted, EVERY if given.every else None)


def _set_up(folder):
    """The demo project on a new database."""
    import django

    # The page of settings names the file.
    os.chdir(folder)
    os.environ |= {"DJANGO_SETTINGS_MODULE": "demo_project.settings", "DATABASE_URL": "sqlite:///shop.sqlite3"}
    django.setup()
    # Chromium asks for an icon that the site does not have.
    logging.getLogger("django.request").setLevel(logging.ERROR)
    from django.core.management import call_command

    from tests.browser import demo_rows

    call_command("migrate", verbosity=0)
    demo_rows.fill()


def _draw(folder, wanted, every):
    from tests.browser.chromium import started
    from tests.browser.site import logged_in, served
    from tests.servers import programs

    found = {name: programs.find_or_install(name) for name in ("chromium", "chromedriver")}
    if reasons := [reason for program, reason in found.values() if program is None]:
        print("\n".join(reasons), file=sys.stderr)
        return 1
    programs.install_korean_font()
    status = 0
    with served() as base, started(found["chromium"][0], found["chromedriver"][0]) as browser:
        client = logged_in("mina")
        browser.visit_site(base, client)
        for name in wanted:
            path = _path(name)
            if path is None:
                print(f"{name}: the admin has no such page")
                continue
            for look in every or (LOOKS if name in IN_EVERY_LOOK else [PLAIN]):
                status |= _picture(browser, path, look, folder / f"admin-{name}{look.suffix}.png")
    return status


def _path(name):
    from urllib.parse import urlencode

    from django.urls import NoReverseMatch, reverse

    for address in ADDRESSES[name]:
        query = f"?{urlencode(QUERIES[address])}" if address in QUERIES else ""
        for arguments in ([], [_row(name)], ["jobqueue"]):
            try:
                return reverse(f"admin:{address}", args=arguments) + query
            except NoReverseMatch:
                continue
    return None


def _row(name):
    """The row whose page is shown: a job that has failed for good, or the newest group."""
    from demo_project.demo import tasks
    from jobqueue.models import Job, JobGroup

    if name == "job":
        dead = Job.objects.filter(status=Job.Status.FAILED, task=tasks.charge_card.module_path)
        return dead.order_by("pk").values_list("pk", flat=True).first()
    return JobGroup.objects.order_by("-pk").values_list("pk", flat=True).first()


def _picture(browser, path, look, target):
    from tests.browser.palette import size, with_palette

    width, height = look.window
    scale = 2 if width == PHONE[0] else 1
    browser.resize(width, height, scale)
    browser.prefer(look.theme)
    browser.speak(look.language)
    browser.open(path)
    # Below a short page there is nothing to see.
    browser.resize(width, min(height, max(HEIGHT_MIN, browser.run(_BOTTOM) + 24)), scale)
    png = with_palette(browser.picture())
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(png)
    told = f"{target.name}: {'x'.join(map(str, size(png)))}, {len(png) // 1000} kB"
    if len(png) > BYTES_MAX:
        print(f"{told}: more than {BYTES_MAX // 1000} kB", file=sys.stderr)
        return 1
    print(told)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

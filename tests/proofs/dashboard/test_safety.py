"""What the pages must not do: exclude people, show what somebody may not see, run what they are given, tell secrets."""

from __future__ import annotations

import pytest

from jobqueue.masking import MASK
from tests.admin import inert, refusals
from tests.admin.helpers import root, text_of
from tests.browser import rows
from tests.browser.walk import LANGUAGES, NARROW, THEMES
from tests.masking import everywhere
from tests.masking.secrets import SECRETS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(3600)]


def test_no_page_has_a_serious_finding_of_axe_core(walk, row):
    """All pages in a browser: what axe-core finds serious or critical, what the policy refuses, what is too wide."""
    for theme in THEMES:
        found = [one for visit in walk.visits for one in visit.violations[theme]]
        row(theme=theme, pages=len(walk.visits), serious_or_critical=len(found))
        assert not found
    refused = [text for visit in walk.visits for text in visit.complaints]
    row(theme="strict Content-Security-Policy", pages=len(walk.visits), refusals_and_errors_of_scripts=len(refused))
    wide = [1 for visit in walk.visits for overflow in visit.overflows.values() if overflow["pixels"]]
    looks = f"{len(NARROW)} widths ({', '.join(map(str, NARROW))} px) in {len(LANGUAGES)} languages"
    row(theme=looks, pages=len(walk.visits), wider_than_the_window=len(wide))
    assert not refused
    assert not wide


def test_nobody_gets_a_page_or_carries_out_a_form_without_permission(figure):
    """Pages and forms that a superuser is offered, asked for and sent by people who may not."""
    rows.fill()
    paths, forms = refusals.offered(root())
    shown = refusals.pages_shown(paths.values())
    sent, wrong = refusals.forms_carried_out(forms)
    figure("pages", len(paths))
    figure("shown without an account or a permission", len(shown))
    figure("forms, by button and action", sent)
    figure("carried out with all permissions to view and no other", len(wrong))
    assert not shown
    assert not wrong


def test_hostile_values_are_text(full, figure):
    """Script tags, RTL signs, characters of 4 bytes and values of 1 MB in every place: pages that do more than show."""
    client, read, shown, found, longest = root(), 0, 0, [], 0
    values = list(inert.VALUES.values()) if full else ["\u202e<script>alert(1)</script>"]
    for text in values:
        for path, query in inert.fill(text):
            page = text_of(client.get(path, query))
            found += inert.wrong(page, text)
            shown += inert.shown(page, text)
            read += 1
    for path, query in inert.large():
        page = text_of(client.get(path, query))
        found += inert.wrong(page, "<b>")
        longest = max(longest, len(page))
        read += 1
    figure("values x places", f"{len(values)} x {len(inert.PLACES)}")
    figure("pages read", read)
    figure("times that a value is shown as text", shown)
    figure("pages that do something else", len(found))
    figure("longest page of a job with 1 MB of payload and result, in kB", longest // 1000)
    assert not found


def test_no_secret_is_shown(full, figure):
    """Secrets in every place: those that a page of the admin or an output of `jobs` shows."""
    # The short form is tests/masking/test_everywhere.py, of which this is a part.
    jobs = everywhere.fill()[:: 1 if full else 20]
    pages, outputs = list(everywhere.pages(root(), jobs)), list(everywhere.commands(jobs))
    found = [leak for _name, text in [*pages, *outputs] for leak in everywhere.leaks(text)]
    figure("patterns x places", f"{len(SECRETS)} x {len(everywhere.PLACES)}")
    figure("pages read", len(pages))
    figure("outputs of commands read", len(outputs))
    figure("secrets shown", len(found))
    figure("masks shown", sum(text.count(MASK) for _name, text in [*pages, *outputs]))
    assert not found

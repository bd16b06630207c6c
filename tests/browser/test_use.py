"""Using the pages: with the keyboard alone, without scripts, and what forms answer with."""

import pytest
from django.urls import reverse
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from tests.admin.helpers import JOBS, job_page
from tests.browser import rows
from tests.browser.walk import NARROW
from tests.factories import make_in_state, make_job, make_jobs, state

pytestmark = pytest.mark.django_db(transaction=True)

SETTINGS = "/admin/jobqueue/settings/"


def said(browser):
    """The messages of the page."""
    return [element.text for element in browser.find_all(".messagelist li")]


#: of the element that has the focus: its place in the page, what it is, and whether one sees that it has the focus
FOCUSED = """
const all = [...document.querySelectorAll("*")], one = document.activeElement;
if (one === document.body || one === null) return null;
const look = () => {
    const style = getComputedStyle(one);
    return ["outlineStyle", "outlineWidth", "outlineColor", "boxShadow", "borderColor", "textDecorationLine",
            "backgroundColor", "color", "clip", "transform", "top", "left"].map(name => style[name]).join();
};
const focused = look();
one.blur();
const plain = look();
one.focus({focusVisible: true});
return {
    place: all.indexOf(one), name: one.name || one.id || one.textContent.trim(), tag: one.tagName.toLowerCase(),
    index: one.tabIndex, seen: focused !== plain, checked: one.type === "checkbox",
};
"""


def test_the_tab_key_goes_through_the_list_of_jobs_in_the_order_of_the_page(site):
    ids = [make_in_state("FAILED", "mail"), *make_jobs(2, "mail")]
    site.open(JOBS)
    found = []
    for _ in range(120):
        site.press(Keys.TAB)
        one = site.run(FOCUSED)
        if one is None or (found and one["place"] == found[0]["place"]):
            break
        found.append(one)
    names = [one["name"] for one in found]
    assert names[0] == "Skip to main content"
    places = [one["place"] for one in found]
    assert places == sorted(places)
    assert {one["index"] for one in found} == {0}
    for name in ("q", "action", "action-toggle", *map(str, ids)):
        assert name in names, name
    assert names.count("_selected_action") == len(ids)
    # A checkbox is drawn by the system, which shows the focus itself.
    assert [one for one in found if not one["seen"] and not one["checked"]] == []


def test_without_scripts_a_job_is_found_and_retried(site):
    job_id = make_in_state("FAILED", "mail")
    make_job("mail")
    site.run_scripts(False)
    site.open(JOBS)
    site.follow("a[href='?state=failed']")
    site.follow(f"a[href*='/job/{job_id}/change/']")
    site.follow("button[value=retry]")
    assert len(said(site)) == 1, said(site)
    assert state(job_id) == "READY"
    assert site.driver.current_url.endswith(job_page(job_id))


def test_without_scripts_an_action_changes_the_jobs_that_are_ticked(site):
    ids = make_jobs(3, "mail")
    site.run_scripts(False)
    site.open(JOBS)
    for job_id in ids[:2]:
        site.find(f"input[name=_selected_action][value='{job_id}']").click()
    Select(site.find("select[name=action]")).select_by_value("cancel")
    site.follow(".actions button[type=submit]")
    assert [state(job_id) for job_id in ids] == ["CANCELED", "CANCELED", "READY"]
    assert said(site)[0].startswith("2 jobs")


def run_checks(browser):
    browser.open(SETTINGS)
    browser.follow("#checks button")
    return ".jobqueue-setting-findings li"


def preview_redrive(browser):
    browser.open(reverse("admin:jobqueue_redrive_new"))
    browser.find("#id_queue").send_keys(rows.QUEUE)
    browser.follow("#content input.default")
    return "#preview"


def ask_before_deleting(browser):
    browser.open(f"{JOBS}?state=failed")
    browser.find("input[name=_selected_action]").click()
    Select(browser.find("select[name=action]")).select_by_value("prune")
    browser.follow(".actions button[type=submit]")
    return "input.deletelink"


@pytest.mark.parametrize("submit", [run_checks, preview_redrive, ask_before_deleting])
def test_the_answer_to_a_form_is_as_readable_as_other_pages(site, submit):
    rows.fill()
    site.complaints()
    assert site.find_all(submit(site)), "the form was not answered as it should be"
    assert site.complaints() == []
    for theme in ("light", "dark"):
        site.prefer(theme)
        assert site.violations() == []
    for width in NARROW:
        site.resize(width)
        assert site.overflow()["pixels"] == 0


def test_the_browser_sees_what_is_wrong(site):
    site.open(SETTINGS)
    assert site.complaints() == []
    site.resize(375)
    assert site.overflow()["pixels"] == 0
    site.run("""
        const add = (tag, changes) => document.querySelector("#content").append(
            Object.assign(document.createElement(tag), changes));
        add("img", {src: "/static/admin/img/search.svg", width: 600});
        add("script", {textContent: "window.wrong = 1"});
    """)
    assert 200 < site.overflow()["pixels"] < 400
    assert [text for text in site.complaints() if "Content Security Policy" in text]
    assert "image-alt" in {one["rule"] for one in site.violations()}

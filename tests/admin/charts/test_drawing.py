"""Charts: what they show, to whom, and that hostile names stay text."""

import re
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone, translation

from jobqueue.admin.page.charts import Series, bars, lines, sparkline
from tests.admin.helpers import HOSTILE, Inline

NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)
MINUTES = [NOON + timedelta(minutes=number) for number in range(4)]


@pytest.fixture(autouse=True)
def utc():
    with timezone.override(UTC):
        yield


def ended(ok=(5, 0, 2, 3), dead=(0, 1, 0, 1)):
    return bars("Jobs that ended", MINUTES, [Series("done", "ok", ok), Series("dead", "dead", dead)], unit="jobs/min")


def parsed(chart):
    """The page is well-formed, and needs no inline style and no script."""
    assert Inline(chart).found == []
    return ElementTree.fromstring(f"<div>{chart}</div>")


def rows(chart):
    return [[cell.text for cell in row] for row in parsed(chart).iter("tr")]


def test_bars_stand_on_each_other():
    chart = ended()
    drawn = re.findall(
        r'<rect fill="url\(#[\w-]+-(\w+)\)" x="[\d.]+%" width="[\d.]+%" y="([\d.]+)" height="([\d.]+)"', chart
    )
    assert [kind for kind, _, _ in drawn] == ["ok", "dead", "ok", "ok", "dead"]
    (_, y, high), (_, above_y, above_high) = drawn[-2:]
    assert float(above_y) + float(above_high) == pytest.approx(float(y), abs=0.2)
    assert float(high) == pytest.approx(3 * float(above_high), rel=0.05)


def test_each_bar_has_its_figures_as_a_hint_and_in_the_table():
    chart = ended()
    assert "2026-11-27 12:03: done 3, dead 1" in chart
    assert rows(chart) == [
        ["time (UTC)", "done", "dead"],
        ["2026-11-27 12:00", "5", "0"],
        ["2026-11-27 12:01", "0", "1"],
        ["2026-11-27 12:02", "2", "0"],
        ["2026-11-27 12:03", "3", "1"],
    ]


def test_a_chart_has_a_name_that_says_what_it_shows():
    tree = parsed(ended())
    picture = next(tree.iter("svg"))
    pictures = [svg for svg in tree.iter("svg") if svg.get("role") == "img"]
    assert picture.get("aria-hidden") == "true", "the legend's marks are decoration"
    (picture,) = pictures
    title = picture.find("title")
    assert title.get("id") == picture.get("aria-labelledby")
    assert title.text == "Jobs that ended. done: at most 5, last 3; dead: at most 1, last 1."


def test_bars_read_without_colours():
    chart = ended()
    assert chart.count("jobqueue-hatch") == 1
    assert len(re.findall(r'<pattern id="([\w-]+)"', chart)) == 2


def test_lines_are_broken_where_there_is_no_value():
    chart = lines("Wait", MINUTES, [Series("p50", "p50", (0.5, None, 1.0, 1.5))], unit="s")
    pieces = re.findall(r'<polyline class="jobqueue-l-p50" points="([^"]+)"', chart)
    assert len(pieces) == 2
    assert "2026-11-27 12:01: -" in chart
    assert rows(chart)[2] == ["2026-11-27 12:01", "-"]
    assert "p50 500ms" in chart


def test_a_logarithmic_chart_has_powers_of_ten():
    chart = lines("Wait", MINUTES, [Series("p95", "p95", (0.02, 0.5, 7.0, None))], unit="s", log=True)
    ticks = [text.text for text in parsed(chart).iter("text")]
    assert ticks[:4] == ["10ms", "100ms", "1s", "10s"]


def test_what_shows_nothing_says_so():
    for chart in (ended((0,) * 4, (0,) * 4), lines("Wait", MINUTES, [Series("p50", "p50", (None,) * 4)], unit="s")):
        assert "Nothing ended in this time." in chart
        assert "<table" not in chart


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text(name):
    chart = bars(name, MINUTES, [Series(name, "ok", (1, 2, 3, 4))], unit=name)
    chart += lines(name, MINUTES, [Series(name, "p50", (1, 2, 3, 4))], unit=name) + sparkline([1, 2], label=name)
    parsed(chart)
    assert "<script" not in chart
    assert "<img" not in chart


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="no kind of a series"):
        bars("x", MINUTES, [Series("x", "red", (1, 2, 3, 4))], unit="jobs")


def test_times_are_those_of_the_active_zone_and_words_of_the_active_language():
    with timezone.override("Asia/Seoul"), translation.override("ko"):
        chart = ended()
    assert "2026-11-27 21:03" in chart


def test_a_sparkline_has_a_label_and_needs_two_values():
    chart = sparkline([0, 5, 2], label="ended per minute")
    assert 'aria-label="ended per minute"' in chart
    assert chart.count(",") == 3
    assert sparkline([1], label="x") == ""
    assert "nan" not in sparkline([0, 0], label="x")

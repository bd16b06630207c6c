"""Horizontal bars as SVG, without a library. The races and the benchmarks draw with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}text.own,text.other{fill:#57606a}"
    ".own{fill:#0969da}.other{fill:#afb8c1}.good{fill:#1a7f37}.bad{fill:#cf222e}.none{fill:#57606a}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}text.own,text.other{fill:#9198a1}"
    ".own{fill:#4493f8}.other{fill:#656c76}.good{fill:#3fb950}.bad{fill:#f85149}}"
)
_ROW, _GAP, _BAR = 24, 28, 420


@dataclass(frozen=True)
class Bar:
    """One bar; value None: nothing was measured. `look` is own, other, good, bad or none; `text` stands behind it."""

    name: str
    value: float | None
    look: str
    text: str


def draw_bars(title: str, groups: Mapping[str, Sequence[Bar]], *, left: int, width: int, foot: str = "") -> str:
    """An SVG of `width` with one group of bars below the other, each group on its own scale; `left` is for names.

    `foot` stands below the bars.
    """
    body, y = [f'<text x="0" y="18" font-weight="600">{escape(title)}</text>'], 44
    for group, bars in groups.items():
        if group and bars:
            body.append(f'<text x="0" y="{y}" font-weight="600">{escape(group)}</text>')
            y += 10
        largest = max((bar.value or 0 for bar in bars), default=0) or 1
        for bar in bars:
            size = 0 if bar.value is None else max(1.0, _BAR * bar.value / largest)
            body.append(f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{escape(bar.name)}</text>')
            body.append(f'<rect x="{left}" y="{y + 3}" width="{size:.1f}" height="16" class="{bar.look}"/>')
            body.append(f'<text x="{left + size + 6:.1f}" y="{y + 15}" class="{bar.look}">{escape(bar.text)}</text>')
            y += _ROW
        y += _GAP if group and bars else 0
    if foot:
        body.append(f'<text x="0" y="{y + 14}" class="none">{escape(foot)}</text>')
        y += _ROW
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{_STYLE}</style>", *body, "</svg>", ""])


def draw_race(title: str, bars: Sequence[Bar], foot: str = "") -> str:
    """The strategies of a race, each with its rate; `foot` stands below."""
    return draw_bars(title, {"": bars}, left=120, width=980, foot=foot)


def race_bar(name: str, per_second: float | None, *, kept: bool, text: str) -> Bar:
    """The bar of a strategy: green if it kept all rules, red if it broke one; per_second None: it did not run."""
    if per_second is None:
        return Bar(name, None, "none", text)
    return Bar(name, per_second, "good" if kept else "bad", f"{per_second:,.0f}/s, {text}")

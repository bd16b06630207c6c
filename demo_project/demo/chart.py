"""The outcome of a race as a picture: one bar per strategy."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.h{font-weight:600}"
    ".ok{fill:#1a7f37}.bad{fill:#cf222e}.no{fill:#57606a}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.ok{fill:#3fb950}.bad{fill:#f85149}}"
)


@dataclass(frozen=True)
class Bar:
    """`per_second` None = it did not run. Broken ones are red, and `words` says so too."""

    name: str
    per_second: float | None
    kept: bool
    words: str


def race_svg(title: str, bars: Sequence[Bar]) -> str:
    """All bars on one scale."""
    largest = max((bar.per_second or 0 for bar in bars), default=0) or 1
    body, y = [f'<text x="0" y="18" class="h">{escape(title)}</text>'], 30
    for bar in bars:
        look = "no" if bar.per_second is None else "ok" if bar.kept else "bad"
        width = 0 if bar.per_second is None else max(1.0, 300 * bar.per_second / largest)
        said = bar.words if bar.per_second is None else f"{bar.per_second:,.0f}/s, {bar.words}"
        body.append(f'<text x="112" y="{y + 13}" text-anchor="end">{escape(bar.name)}</text>')
        body.append(f'<rect x="120" y="{y}" width="{width:.1f}" height="17" class="{look}"/>')
        body.append(f'<text x="{126 + width:.1f}" y="{y + 13}" class="{look}">{escape(said)}</text>')
        y += 25
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {y}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{_STYLE}</style>", *body, "</svg>", ""])

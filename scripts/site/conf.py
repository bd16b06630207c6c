"""Sphinx builds the site from the same Markdown that is read on a code host: sh scripts/docs.sh calls it.

The source is the repository itself, so that a link from a page to a file outside of docs/ leads somewhere: to a page of
the site for the Markdown at the top, to a download for every other file. Nothing is loaded from another host.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from jobqueue import __version__  # noqa: E402

project, author, release = "jobqueue", "The jobqueue maintainers", __version__
copyright = author
extensions = ["myst_parser"]
root_doc = "docs/index"
#: each has the pages of its folder below it, and the indexes of other folders that it links to
FOLDERS = ("docs/proof/index", "docs/adr/index", "docs/contributing/index")
TOP = ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY", "UPGRADING")
include_patterns = ["docs/**.md", *(f"{name}.md" for name in TOP)]
# A search for pages must not walk through environments.
exclude_patterns = [".*", "build", "dist", "benchmarks", "demo_project", "jobqueue", "tests"]

# The anchors that code hosts make.
myst_heading_anchors = 6
myst_enable_extensions = ["html_image"]
# Quotes and dashes stay as they were written: much of the text is copied into a terminal.
smartquotes = False
# Examples leave things out, which a lexer cannot know.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = f"jobqueue {release}"
html_copy_source = html_show_sourcelink = html_show_sphinx = html_use_index = False
html_static_path, html_extra_path = ["static"], ["extra"]
html_css_files = ["site.css"]

_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
#: whichever begins first: a comment may hold a fence, and a fence a comment
_FENCE_OR_COMMENT = re.compile(r"(^[ \t]*```.*?^[ \t]*```$)|^[ \t]*<!--.*?-->[ \t]*\n?", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#\s]+\.md)")


def without_comments(text: str) -> str:
    """The page as it is shown: the hidden comments steer tests."""
    return _FENCE_OR_COMMENT.sub(lambda found: found[1] or "", text)


def navigation(index: str, docname: str) -> str:
    """The tree of pages, made of the links of each section of the index in their order."""
    trees = [_tree("Project", [f"/{name}" for name in TOP])]
    seen: set[str] = {f"/{name}" for name in TOP}
    for section in re.split(r"^## ", _FENCE.sub("", index), flags=re.MULTILINE)[1:]:
        caption, _, rest = section.partition("\n")
        pages = []
        for link in _LINK.findall(rest):
            page = "/" + str((ROOT / docname).parent.joinpath(link).resolve().relative_to(ROOT).with_suffix(""))
            if page not in seen:
                seen.add(page)
                pages.append(page)
        trees.append(_tree(caption, pages))
    return "\n".join([*trees[1:], trees[0]])


def _tree(caption: str, pages: list[str]) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""])


def _read(app: Any, docname: str, source: list[str]) -> None:
    text = without_comments(source[0])
    if docname == root_doc:
        text += navigation(text, docname)
    elif docname in FOLDERS:
        folder = (ROOT / docname).parent
        linked = [folder.joinpath(link).resolve() for link in _LINK.findall(text)]
        below = [page for page in dict.fromkeys(linked) if page.is_relative_to(folder) or _is_apart(page)]
        text += _tree("Pages", [f"/{page.relative_to(ROOT).with_suffix('')}" for page in below])
    source[0] = text


def _is_apart(page: Path) -> bool:
    """Whether a page is not in the navigation of the users' index."""
    return page.stem == "benchmarks" or str(page.relative_to(ROOT).with_suffix("")) in FOLDERS[:2]


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _read)

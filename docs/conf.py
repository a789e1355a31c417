"""The site that Sphinx makes of these documents: `make site`.

Says in which part of the navigation each page stands, and where links lead that leave docs/. It
says nothing that the pages could say themselves: they are also read as they are, in a checkout.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.addnodes import download_reference
from sphinx.errors import ExtensionError
from sphinx.transforms.post_transforms import SphinxPostTransform

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
PROJECT = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
SOURCE = PROJECT["urls"]["Source"]

NAVIGATION = {
    "Start here": ["tutorial", "words", "troubleshooting"],
    "Recipes": [
        "how-to/index",
        "how-to/api-key",
        "how-to/addresses",
        "how-to/login",
        "how-to/tiers",
        "how-to/llm-budget",
        "how-to/reservations",
        "how-to/money",
        "how-to/credits",
        "how-to/mcp",
        "how-to/concurrency",
        "how-to/elastic",
        "how-to/two-limits",
        "how-to/queue",
        "how-to/istio",
        "how-to/envoy-gateway",
        "how-to/gateways",
        "how-to/litellm",
        "how-to/microservice",
        "policies",
    ],
    "How to": ["clients", "middleware", "testing-rules", "shipping-rules", "replay", "migration"],
    "Reference": [
        "rules",
        "algorithms",
        "settings",
        "cli",
        "metrics",
        "decision-log",
        "overrides",
        "xds",
    ],
    "Operate": [
        "operations",
        "console",
        "security",
        "sizing",
        "scale",
        "runbook",
        "kubernetes",
        "redis",
        "regions",
        "traces",
    ],
    "Inside": [
        "architecture",
        "architecture/counting",
        "architecture/redis",
        "architecture/time",
        "architecture/rules",
        "architecture/watching",
        "architecture/processes",
        "real-clients",
        "benchmarks",
        "changelog",
    ],
}
"""The pages of each part, in the order in which they are read. Others stand under `More`."""

project = PROJECT["name"]
author = PROJECT["authors"][0]["name"]
project_copyright = f"2026, {author}"
version = release = PROJECT["version"]
extensions = ["myst_parser"]
exclude_patterns = ["playground", "site"]
myst_heading_anchors = 4
nitpicky = True
highlight_language = "none"
html_theme = "furo"
html_static_path = ["site"]
html_css_files = ["narrow.css"]
html_js_files = ["tables.js"]
html_search_scorer = str(DOCS / "site" / "search.js")
html_favicon = "playground/icon.svg"
html_title = f"{project} {version}"
OWN_PAGES = ["playground.html", "playground"]
"""What becomes a part of the site as it is."""
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "source_repository": f"{SOURCE}/",
    "source_branch": "main",
    "source_directory": "docs/",
}


def parts() -> dict[str, list[str]]:
    """The navigation with all pages. Raises ExtensionError for one that is not there."""
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")} - {
        "index"
    }
    listed = [page for part in NAVIGATION.values() for page in part]
    if gone := sorted(set(listed) - pages):
        raise ExtensionError(
            f"NAVIGATION in docs/conf.py lists {', '.join(gone)}, and docs/ has no such page: "
            "take it out there, or write the page"
        )
    more = sorted(pages - set(listed))
    return NAVIGATION | ({"More": more} if more else {})


def navigation() -> str:
    """What the navigation is made of, for the end of the first page."""
    blocks = []
    for part, pages in parts().items():
        lines = ["", "```{toctree}", ":hidden:", f":caption: {part}", "", *pages, "```", ""]
        blocks.append("\n".join(lines))
    return "".join(blocks)


def prepare(_app: Sphinx, page: str, text: list[str]) -> None:
    """Adds the navigation to the first page; leads links that leave docs/ to the repository."""
    folder = PurePosixPath(page).parent

    def outside(link: re.Match[str]) -> str:
        target = (DOCS / folder / link[1]).resolve()
        if target.is_relative_to(DOCS) or not target.exists():  # what is missing, Sphinx tells
            return link[0]
        kind = "tree" if target.is_dir() else "blob"
        anchor = link[2] or ""
        return f"]({SOURCE}/{kind}/main/{target.relative_to(DOCS.parent)}{anchor})"

    text[0] = re.sub(r"\]\(((?:\.\./)+[^)#]*)(#[^)]*)?\)", outside, text[0])
    if page == "index":
        text[0] += navigation()


class OwnPages(SphinxPostTransform):
    """Makes links of the downloads that are pages."""

    default_priority = 5

    def run(self, **_kwargs: object) -> None:
        """Replaces them in one document."""
        for node in list(self.document.findall(download_reference)):
            if node["reftarget"] in OWN_PAGES:
                link = nodes.reference("", "", *node.children, refuri=node["reftarget"])
                node.replace_self(link)


def finish(app: Sphinx, failure: Exception | None) -> None:
    """Copies what becomes a part of the site as it is."""
    if failure is None and app.builder.format == "html":
        for name in OWN_PAGES:
            if (DOCS / name).is_dir():
                shutil.copytree(DOCS / name, app.outdir / name, dirs_exist_ok=True)
            else:
                text = (DOCS / name).read_text()
                # In a checkout its links lead to the pages as they are there.
                made = re.sub(r'href="([\w-]+)\.md"', r'href="\1.html"', text)
                (app.outdir / name).write_text(made)


def setup(app: Sphinx) -> None:
    """What Sphinx calls."""
    app.connect("source-read", prepare)
    app.connect("build-finished", finish)
    app.add_post_transform(OwnPages)

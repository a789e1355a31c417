"""What docs/conf.py and docs/site make of the documents. `make lint` checks the rest."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from sphinx.errors import ExtensionError

from tests.servers.chromium import Chromium

TOP = Path(__file__).parents[2]


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """docs/conf.py, for three pages of a directory of its own."""
    spec = spec_from_file_location("conf", TOP / "docs" / "conf.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "conf", module)
    spec.loader.exec_module(module)
    docs = tmp_path / "docs"
    (docs / "how-to").mkdir(parents=True)
    for page in ("index.md", "first.md", "how-to/second.md"):
        (docs / page).touch()
    (tmp_path / "examples").mkdir()
    (tmp_path / "SECURITY.md").touch()
    monkeypatch.setattr(module, "DOCS", docs)
    monkeypatch.setattr(module, "NAVIGATION", {"Start": ["first"]})
    return module


def test_new_page_stands_under_more(conf: ModuleType) -> None:
    """A page that nobody has put into the navigation is found there all the same."""
    assert conf.parts() == {"Start": ["first"], "More": ["how-to/second"]}
    assert ":caption: More\n\nhow-to/second\n```" in conf.navigation()


def test_page_that_is_gone(conf: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of the navigation that is not there ends the build, with what to do."""
    monkeypatch.setattr(conf, "NAVIGATION", {"Start": ["first", "third"]})

    with pytest.raises(ExtensionError, match=r"docs/conf.py lists third, and .* take it out there"):
        conf.parts()


@pytest.mark.parametrize(
    ("page", "link", "led"),
    [
        ("first", "../SECURITY.md#reporting", "blob/main/SECURITY.md#reporting"),
        ("first", "../examples/", "tree/main/examples"),
        ("how-to/second", "../../SECURITY.md", "blob/main/SECURITY.md"),
    ],
)
def test_links_out_of_docs(conf: ModuleType, page: str, link: str, led: str) -> None:
    """A link that leaves docs/ leads to the repository."""
    text = [f"[text]({link})"]

    conf.prepare(None, page, text)

    assert text == [f"[text]({conf.SOURCE}/{led})"]


@pytest.mark.parametrize("link", ["../first.md#a", "../../gone.md", "second.md"])
def test_other_links(conf: ModuleType, link: str) -> None:
    """Links within docs/ stay, and so do those to nothing, for Sphinx to complain about."""
    text = [f"[text]({link})"]

    conf.prepare(None, "how-to/second", text)

    assert text == [f"[text]({link})"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site."""
    made = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fresh-env", "--builder", "html"]
    subprocess.run([*command, str(TOP / "docs"), str(made)], check=True)
    return made


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[Chromium]:
    chromium = Chromium(tmp_path)
    yield chromium
    chromium.close()


FOUND = """new Promise((done) => {
  const look = () => Search.status?.innerText.includes("finished")
    ? done([...Search.output.querySelectorAll("a")].map((link) => link.textContent))
    : setTimeout(look, 20);
  look();
})"""


@pytest.mark.parametrize(
    ("words", "first"),
    [("ban", "Overrides"), ("login", "Limit login attempts"), ("outflow", "Other words")],
)
def test_search_ranks_by_page(site: Path, chromium: Chromium, words: str, first: str) -> None:
    """A search shows pages that explain before lists, and both before what has changed."""
    chromium.visit(f"{(site / 'search.html').as_uri()}?q={words}")
    found = chromium.run(FOUND)

    assert found[0] == first
    inside = [page in ("Changelog", "Architecture", "Benchmarks") for page in found]
    assert inside == sorted(inside)


WIDER = """[
  document.documentElement.scrollWidth > innerWidth,
  [...document.querySelectorAll(".table-wrapper")]
    .filter((table) => table.scrollWidth > table.clientWidth + 8).length,
]"""


def test_phones(site: Path, chromium: Chromium) -> None:
    """On a narrow screen no page scrolls sideways, and wide tables are lists."""
    for page in ("index", "words", "settings", "rules", "benchmarks", "how-to/login"):
        chromium.open(site / f"{page}.html", 360, 800)
        assert chromium.run(WIDER) == [False, 0], page


def test_ways_back_from_the_playground(site: Path, chromium: Chromium) -> None:
    """The site's playground leads back to its pages, which are there."""
    chromium.open(site / "playground.html")
    ways = chromium.run(
        "[...document.querySelectorAll('nav a')].map((a) => a.getAttribute('href'))"
    )

    assert ways == ["algorithms.html", "index.html"]
    assert all((site / way).exists() for way in ways)

"""The page that `ratelimit replay --html` writes: complete, safe, and readable by everybody."""

from __future__ import annotations

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ratelimit_service.rule_lab.replay.page import page_of
from ratelimit_service.rule_lab.replay.report import Report
from tests.rule_lab.replay.playing import START_US, csv_of, limited, played, run
from tests.rule_lab.replay.test_replay import record
from tests.servers.chromium import chromium_command

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202e&amp;"


class Page(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Of many callers, one of which tries to be markup."""
    new = limited(tmp_path, "unit: minute, requests_per_unit: 3", "new.yaml")
    old = limited(tmp_path, "unit: minute, requests_per_unit: 5", "old.yaml")
    records = [
        record(START_US + 1_000_000 * (10 * index + user), f"u{user}" if user else EVIL)
        for index in range(12)
        for user in range(12)
        if user < 6 or index < 2
    ]
    return played(sorted(records, key=lambda each: each.at_us), new, old)


def test_page_needs_nothing_and_runs_nothing(report: Report) -> None:
    """The page has no script and no handler, asks no network, and forbids both to itself."""
    text = page_of(report)
    page = Page(text)

    assert not page.open
    assert not {tag for tag, _ in page.elements} & {"script", "img", "link", "iframe", "object"}
    for _, attributes in page.elements:
        assert not {name for name in attributes if name.startswith("on") or name == "src"}
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"url\(|@import|https?:", text)
    (policy,) = [each for each in page.all("meta") if "http-equiv" in each]
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_callers_values_are_text(report: Report) -> None:
    """What a caller sends is shown as it is, and is no markup; what would hide words is escaped."""
    text = page_of(report)

    assert "alert(1)" in "".join(Page(text).words)
    assert "<script" not in text
    assert "\u202e" not in text


def test_page_can_be_read_without_seeing_it(report: Report) -> None:
    """Plots say in words what they show; tables have captions and heads, sections have names."""
    page = Page(page_of(report))

    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == 1
    assert page.all("svg")
    for plot in page.all("svg"):
        assert plot["role"] == "img"
        assert "asked" in (plot["aria-label"] or "")
    assert len(page.all("caption")) == len(page.all("table")) > 2
    assert all(head["scope"] in {"row", "col"} for head in page.all("th"))
    names = {attributes.get("id") for _, attributes in page.elements}
    for link in page.all("a"):
        assert (link["href"] or "")[1:] in names


def test_table_of_rules_has_words_for_heads(report: Report) -> None:
    """The columns of the table of rules have words for heads."""
    text = page_of(report)
    (first,) = re.findall('<nav aria-label="Rules">.*?<thead>(.*?)</thead>', text, re.DOTALL)
    heads = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', first)

    assert heads == ["Rule", "Asked", "Denied", "Denied before", "Findings"]


def test_findings_have_words_in_the_table_of_rules(tmp_path: Path) -> None:
    """The table of rules says in words what was found of each, not by the kinds that JSON has."""
    records = [record(START_US + index, "mad") for index in range(30)]
    records += [record(START_US + index, f"u{user}") for user in range(9) for index in range(4)]
    shown = played(records, limited(tmp_path, "unit: day, requests_per_unit: 3"))
    (row,) = re.findall(
        "<tbody>\n(.*?)\n?</tbody>", page_of(shown).partition("</nav>")[0], re.DOTALL
    )

    assert {"few"} < {each.kind for each in shown.rules[0].findings}
    assert "few callers make most denials" in row


def test_page_says_what_the_text_says(report: Report) -> None:
    """The page has the report's numbers, findings, changes and names."""
    lines = " ".join("".join(Page(page_of(report)).words).split())

    (rule,) = report.rules
    assert f"{report.denied:,} ({100 * report.denied / report.requests:.1f} %)" in lines
    assert rule.findings
    for finding in rule.findings:
        assert finding.text in lines
    assert report.newly_denied is not None
    assert f"{report.newly_denied.requests} requests of" in lines
    for each in rule.top_denied:
        if EVIL not in each.name:
            assert each.name in lines


def test_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--html` writes a file beside what is printed."""
    log, page = tmp_path / "log.csv", tmp_path / "report.html"
    log.write_text(csv_of([(0, "a"), (1, "a")]))
    rules = limited(tmp_path, "unit: day, requests_per_unit: 1")

    ran = run(capsys, "--rules", rules, "--html", page, log)

    assert ran.out.startswith("2 requests")
    assert page.read_text().startswith("<!doctype html>")


def test_page_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That there is no place for the page is found out before the run, not after it."""
    missing = tmp_path / "reports" / "today.html"

    ran = run(capsys, "--rules", tmp_path / "no.yaml", "--html", missing, tmp_path / "no.csv")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        f"ratelimit: {missing} cannot be written: there is no directory {tmp_path / 'reports'}\n"
    )


@pytest.mark.parametrize("width", [360, 1280])
def test_page_in_chromium(report: Report, tmp_path: Path, width: int) -> None:
    """In a real browser nothing that callers sent acts, and nothing is wider than a phone."""
    # The probe is the test's own: it stands outside what the page's policy covers.
    page = page_of(report)
    policy = re.search(r"<meta http-equiv=.*?>", page)
    assert policy
    probe = (
        "<script>addEventListener('load', () => {"
        "const wide = [...document.body.querySelectorAll('*')].filter("
        "e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll'));"
        "document.title = `wide ${wide.length} images ${document.images.length}`;"
        "})</script>"
    )
    path = tmp_path / "report.html"
    path.write_text(page.replace(policy[0], "").replace("</head>", f"{probe}</head>"))
    shown = subprocess.run(
        [
            chromium_command(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},800",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout

    assert "<title>wide 0 images 0</title>" in shown

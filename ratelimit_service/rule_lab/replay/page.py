"""A report as one HTML page that needs nothing else: no network, no script.

Whatever callers have sent is text in it, never markup. Plots are SVG with a text alternative.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ratelimit_service.containers.sketches import Frequent
from ratelimit_service.rule_lab.replay.report import (
    DEMAND_BOUNDS,
    LimitReport,
    Plot,
    Report,
    RuleReport,
    moment,
    side_changes,
)
from ratelimit_service.rule_lab.replay.text import changed, headline, part, suggested
from ratelimit_service.text.display import printable

__all__ = ["page_of"]

_STYLE: Final = """
:root { color-scheme: light dark; --text: #1c2128; --soft: #57606a; --ground: #fff; --card: #f6f8fa;
  --line: #d0d7de; --asked: #6e9bd1; --denied: #c4432b; --good: #1a7f37; --warn: #fff4d6; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #9aa5b1; --ground: #0d1117;
  --card: #161b22; --line: #30363d; --asked: #4a7ab5; --denied: #f2745f; --good: #57c46f;
  --warn: #3a2f10; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; color: var(--text);
  background: var(--ground); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.25rem; margin: 0 0 .5rem; }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 1rem; margin: 1rem 0; }
.soft { color: var(--soft); } .finding { background: var(--warn); border-left: 4px solid
  var(--denied); padding: .5rem .75rem; margin: .5rem 0; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .5rem;
  margin: .75rem 0; padding: 0; }
.numbers div { border: 1px solid var(--line); border-radius: 6px; padding: .5rem;
  background: var(--ground); }
.numbers dt { color: var(--soft); font-size: .85rem; } .numbers dd { margin: 0; font-size: 1.2rem;
  font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
caption { text-align: left; color: var(--soft); padding: .25rem 0; }
th, td { text-align: left; padding: .3rem .6rem .3rem 0; border-top: 1px solid var(--line);
  vertical-align: top; min-width: 5rem; }
tbody th { font-weight: inherit; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--soft);
  font: 11px system-ui, sans-serif; }
.asked { fill: var(--asked); } .denied { fill: var(--denied); } .axis { stroke: var(--line); }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .3em 0 1em; }
.key.a { background: var(--asked); margin-left: 0; } .key.d { background: var(--denied); }
figure { margin: .75rem 0; } figcaption { color: var(--soft); font-size: .9rem; }
a { color: inherit; } a:focus-visible { outline: 3px solid var(--asked); }
@media (max-width: 40rem) { svg text { font-size: 22px; } tbody th { min-width: 8rem; }
  td:not(.number) { min-width: 16rem; } }
"""

_WIDTH: Final = 720
_HEIGHT: Final = 120
_TICKS: Final = 26
"""Of the plots, in SVG's units; the last is the room for words, which are larger on a phone."""

_WORDS: Final = _HEIGHT + 20
"""Where the words below a plot stand."""

_FINDINGS: Final = {
    "few": "few callers make most denials",
    "harmless": "a shadow that would deny nobody",
    "tight": "nearly reached",
}
"""Kinds of findings whose names say too little by themselves."""


def page_of(report: Report) -> str:
    """The page."""
    return "".join(f"{piece}\n" for piece in _page(report))


def _page(report: Report) -> Iterator[str]:
    title = f"Replay of {_text(report.new)}"
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield (
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    )
    yield f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>"
    yield f"<h1>{title}</h1>"
    yield from (f"<p>{_text(line)}</p>" for line in headline(report))
    yield f'<p class="soft">Logs: {_text(", ".join(report.logs))}</p>'
    for note in report.notes:
        yield f'<p class="finding"><strong>Note:</strong> {_text(note)}</p>'
    yield from _timeline(report.plot, "All requests")
    for what, change in side_changes(report):
        yield f"<section>\n<h2>{_text(changed(change))} {what}</h2>"
        yield from _names(change.top, change.requests, f"Who is {what} most often")
        yield "</section>"
    yield from _contents(report)
    for number, rule in enumerate(report.rules):
        yield from _rule(rule, f"rule-{number}", "")
    for number, rule in enumerate(report.removed):
        yield from _rule(rule, f"removed-{number}", "Met in the old rules only. ")
    yield from _rest(report)
    yield "</main>\n</body>\n</html>"


def _text(text: object) -> str:
    """Anybody's text, as text."""
    return html.escape(printable(str(text)))


def _contents(report: Report) -> Iterator[str]:
    """All rules in a table, with links."""
    if not report.rules:
        return
    compared = report.denied_before is not None
    head = [
        "Rule",
        "Asked",
        "Denied",
        *(["Denied before"] if compared else []),
        "Findings",
    ]
    rows = [
        [
            f'<a href="#rule-{number}">{_text(rule.rule)}</a> '
            f'<span class="soft">{_text(rule.domain)}</span>',
            f"{rule.asked:,}",
            part(rule.denied, rule.asked),
            *([f"{rule.denied_before or 0:,}"] if compared else []),
            _text(", ".join(_finding(each.kind) for each in rule.findings)),
        ]
        for number, rule in enumerate(report.rules)
    ]
    numeric = range(1, len(head) - 1)
    yield '<nav aria-label="Rules">'
    yield from _table("The rules that were met, those that deny most first", head, rows, numeric)
    yield "</nav>"


def _finding(kind: str) -> str:
    return _FINDINGS.get(kind) or kind.replace("_", " ")


def _rule(rule: RuleReport, anchor: str, note: str) -> Iterator[str]:
    yield f'<section id="{anchor}" aria-labelledby="{anchor}-name">'
    yield f'<h2 id="{anchor}-name">{_text(rule.rule)} of {_text(rule.domain)}</h2>'
    mode = "" if rule.mode == "enforced" else f", {rule.mode}"
    yield f'<p class="soft">{note}{_text(rule.source)}{mode}</p>'
    for finding in rule.findings:
        yield f'<p class="finding">{_text(finding.text)}</p>'
    yield '<dl class="numbers">'
    for name, value in _numbers(rule):
        yield f"<div><dt>{name}</dt><dd>{_text(value)}</dd></div>"
    yield "</dl>"
    yield from _timeline(rule.plot, f"Requests that met {rule.rule}")
    for limit in rule.limits:
        yield from _limit(limit)
    yield from _names(rule.top_denied, rule.denials, "Who was denied most often")
    for what, change in side_changes(rule):
        yield f"<h3>{_text(changed(change))} {what} here</h3>"
        yield from _names(change.top, change.requests, f"Who is {what} most often")
    yield "</section>"


def _numbers(rule: RuleReport) -> Iterator[tuple[str, str]]:
    yield "asked", f"{rule.asked:,}"
    yield "callers", f"{'' if rule.callers_exact else 'about '}{rule.callers:,}"
    yield "denied", part(rule.denied, rule.asked)
    if rule.denied_before is not None:
        yield "denied before", f"{rule.denied_before:,}"
    yield "callers denied", f"{rule.callers_denied_percent:g} %"
    if rule.admitted_over:
        yield "over, let through", f"{rule.admitted_over:,}"
    if rule.held_back:
        yield "denied by other rules", f"{rule.held_back:,}"
    yield "busiest second", f"{rule.busiest_second:,}"


def _limit(limit: LimitReport) -> Iterator[str]:
    yield f"<h3>{_text(limit.text)}</h3>"
    if limit.peak:
        yield (
            f"<p>At most {limit.peak:,} used ({limit.peak_percent:g} %), by "
            f"{_text(limit.peak_caller)}, {_text(limit.peak_at)}.</p>"
        )
    if limit.suggestions:
        sentence = suggested(limit)
        yield f"<p>{_text(sentence[:1].upper() + sentence[1:])}.</p>"
    if sum(limit.demand) > 1:
        yield from _demand(limit)


def _demand(limit: LimitReport) -> Iterator[str]:
    """Callers by the most they asked, against the limit."""
    names = [f"≤{bound:g}" for bound in DEMAND_BOUNDS] + [f">{DEMAND_BOUNDS[-1]:g}"]
    most = max(limit.demand)
    within = sum(limit.demand[: DEMAND_BOUNDS.index(1.0) + 1])
    whole = sum(limit.demand)
    description = (
        f"Callers by the most they asked, in limits: {part(within, whole)} never asked for more "
        "than the limit"
    )
    width = _WIDTH / len(names)
    bars = []
    for index, (name, count) in enumerate(zip(names, limit.demand, strict=True)):
        height = round((_HEIGHT - _TICKS) * count / most, 1)
        start, top = round(index * width + 4, 1), round(_HEIGHT - height, 1)
        kind = "asked" if index <= DEMAND_BOUNDS.index(1.0) else "denied"
        bars.append(
            f'<rect class="{kind}" x="{start}" y="{top}" width="{round(width - 8, 1)}" '
            f'height="{height}"><title>{_text(name)} limits: {count:,} callers</title></rect>'
        )
        middle = round(index * width + width / 2, 1)
        bars.append(f'<text x="{middle}" y="{_WORDS}" text-anchor="middle">{_text(name)}</text>')
        if count:
            bars.append(f'<text x="{middle}" y="{top - 4}" text-anchor="middle">{count:,}</text>')
    yield from _figure(bars, description, _text(description))


def _timeline(plot: Plot, name: str) -> Iterator[str]:
    """What was asked and denied over time, as bars."""
    spans = plot.spans
    if len(spans) < 2:
        return
    most = max(span.requests for span in spans) or 1
    peak = max(spans, key=lambda span: span.requests)
    width = _WIDTH / len(spans)
    bars = []
    for index, span in enumerate(spans):
        if not span.requests:
            continue
        start, wide = round(index * width, 2), round(max(width * 0.9, 0.5), 2)
        for kind, number in (("asked", span.requests), ("denied", span.denied)):
            if number:
                height = round(_HEIGHT * number / most, 2)
                bars.append(
                    f'<rect class="{kind}" x="{start}" y="{round(_HEIGHT - height, 2)}" '
                    f'width="{wide}" height="{height}"/>'
                )
    last = spans[-1]
    bars.append(f'<text x="0" y="{_WORDS}">{moment(spans[0].start_us)}</text>')
    bars.append(f'<text x="{_WIDTH}" y="{_WORDS}" text-anchor="end">{moment(last.start_us)}</text>')
    requests, denied = sum(span.requests for span in spans), sum(span.denied for span in spans)
    description = (
        f"{name} over time: {requests:,} asked, {denied:,} over the limit; at most {most:,} in "
        f"{_seconds(plot.width_seconds)} from {moment(peak.start_us)}"
    )
    shown = (
        f'<span class="key a"></span>asked<span class="key d"></span>over the limit, in bars of '
        f"{_seconds(plot.width_seconds)}; the highest is {most:,}"
    )
    yield from _figure(bars, description, shown)


def _seconds(seconds: int) -> str:
    for unit, name in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.3g} {name}s"
    return f"{seconds} second{'' if seconds == 1 else 's'}"


def _figure(shapes: Sequence[str], description: str, shown: str) -> Iterator[str]:
    """A plot; `description` says the same to who cannot see it."""
    yield "<figure>"
    box = f"0 -{_TICKS} {_WIDTH} {_HEIGHT + 2 * _TICKS}"
    yield f'<svg viewBox="{box}" role="img" aria-label="{_text(description)}">'
    yield f'<line class="axis" x1="0" y1="{_HEIGHT}" x2="{_WIDTH}" y2="{_HEIGHT}"/>'
    yield from shapes
    yield f"</svg>\n<figcaption>{shown}</figcaption>\n</figure>"


def _names(names: Sequence[Frequent], whole: int, caption: str) -> Iterator[str]:
    if not names:
        return
    rows = [
        [
            _text(each.name),
            f"{'at most ' if each.error else ''}{each.times:,}",
            f"{100 * each.times / whole:.1f} %" if whole else "",
        ]
        for each in names
    ]
    yield from _table(caption, ["Caller", "Requests", "Share"], rows, (1, 2))


def _rest(report: Report) -> Iterator[str]:
    """Rules that nobody met, and requests that met no rule."""
    if report.unmet:
        yield "<section>"
        rows = [[_text(each.rule), _text(each.domain), _text(each.source)] for each in report.unmet]
        yield from _table("Rules that no request met", ["Rule", "Domain", "Where"], rows, ())
        yield "</section>"
    if report.unmatched:
        yield "<section>"
        rows = [[_text(domain), f"{count:,}"] for domain, count in report.unmatched.items()]
        caption = "Requests with a descriptor that met no rule"
        yield from _table(caption, ["Domain", "Requests"], rows, (1,))
        yield "</section>"


def _table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[int]
) -> Iterator[str]:
    """A table of cells that are markup already; the first of each row names it."""
    yield f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(caption)}">'
    yield f"<table>\n<caption>{_text(caption)}</caption>\n<thead><tr>"
    for index, name in enumerate(head):
        kind = ' class="number"' if index in numeric else ""
        yield f'<th scope="col"{kind}>{name}</th>'
    yield "</tr></thead>\n<tbody>"
    for row in rows:
        yield f'<tr><th scope="row">{row[0]}</th>'
        for index, cell in enumerate(row[1:], 1):
            kind = ' class="number"' if index in numeric else ""
            yield f"<td{kind}>{cell}</td>"
        yield "</tr>"
    yield "</tbody>\n</table>\n</div>"

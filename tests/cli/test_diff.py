"""`ratelimit diff`: how changes are shown, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.inside import Inside

OLD = """domain: api
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 60}}
- {key: path, value: "/a*", rate_limit: {unit: second, requests_per_unit: 5}}
"""
NEW = """domain: api
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 60}}
- {key: user, value: "``|<b>", rate_limit: {unit: minute, requests_per_unit: 9}}
- {key: path, value: "/a*", rate_limit: {unit: second, requests_per_unit: 5}}
"""


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.yaml").write_text(OLD)
    Path("new.yaml").write_text(NEW)


def test_text(ratelimit: Inside) -> None:
    """For people: what held and what holds, which counters start anew, and whom it concerns."""
    assert ratelimit("diff", "old.yaml", "new.yaml") == (
        1,
        """\
tightened: domain api: user at new.yaml:3:15
  - 60 per minute
  + 60 per hour
  counters start anew: the window is 1 hour, not 1 minute
added: domain api: user="``|<b>" at new.yaml:4:32
  + 9 per minute
  callers such as user="``|<b>" met rule user (60 per minute)
""",
        "2 changes: 1 added, 1 tightened\n",
    )


@pytest.mark.usefixtures("programs")
def test_exit_status(ratelimit: Inside) -> None:
    """It is 0 if nothing changes, 1 if something does, and 2 if there is a problem."""
    Path("bad.yaml").write_text("domain: a\nx: 1\n")

    assert ratelimit("diff", "old.yaml", "old.yaml") == (0, "", "no changes\n")
    assert ratelimit("diff", "new.yaml", "old.yaml").code == 1
    bad = ratelimit("diff", "old.yaml", "bad.yaml")
    assert (bad.code, bad.out) == (2, "")
    assert bad.err.startswith("bad.yaml:2:1: 'x' is no key")
    assert ratelimit("diff", "old.yaml", "nowhere").code == 2


def test_json(ratelimit: Inside) -> None:
    """For programs it says the same."""
    result = ratelimit("diff", "--format", "json", "old.yaml", "new.yaml")

    first, second = json.loads(result.out)
    assert (first["kind"], first["domain"], first["rule"]) == ("tightened", "api", "user")
    assert first["old"] == {"rule": "user", "source": "old.yaml:3:15", "policy": "60 per minute"}
    assert first["counters_start_anew"] == ["the window is 1 hour, not 1 minute"]
    assert second["old"] is None
    (callers,) = second["callers"]
    assert callers["example"] == [["user", "``|<b>"]]
    assert (callers["old"]["rule"], callers["counters_start_anew"]) == ("user", False)
    assert json.loads(ratelimit("diff", "--format", "json", "old.yaml", "old.yaml").out) == []


def test_markdown(ratelimit: Inside) -> None:
    """For a comment it is one table, in which words of the files are code, whatever they hold."""
    result = ratelimit("diff", "--format", "markdown", "old.yaml", "new.yaml")

    head, _, _, _, first, second = result.out.splitlines()
    assert head == "**Rules: 2 changes: 1 added, 1 tightened.**"
    assert first == (
        "| **tightened** | `api` | `user` | `60 per minute` | `60 per hour` | "
        "`counters start anew: the window is 1 hour, not 1 minute` |"
    )
    assert '| **added** | `api` | ``` user="``\\|<b>" ``` | — | `9 per minute` |' in second
    nothing = ratelimit("diff", "--format", "markdown", "old.yaml", "old.yaml")
    assert nothing.out == "**Rules: no changes.**\n"

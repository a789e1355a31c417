"""`ratelimit why`: which limit denied a caller, and what came after it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from ratelimit_service.cli.main import ratelimit
from ratelimit_service.decision_log.line import hashed_value, read_line
from ratelimit_service.errors import SettingsError
from ratelimit_service.rule_lab.replay import denials
from ratelimit_service.rule_lab.replay.logs import LogError
from ratelimit_service.rule_lab.replay.recorded import moment_us

DAY = "2025-11-22"
"""It is over, so sentences name it."""


def line(time: str, code: str = "OVER_LIMIT", user: str = "alice", /, **more: object) -> str:
    seconds = 60 - int(time[-2:])
    fields: dict[str, object] = {
        "v": 1,
        "time": f"{DAY}T{time}Z",
        "domain": "api",
        "descriptors": [{"entries": [["user", user]]}],
        "code": code,
        "by": "count",
        "descriptor": 0,
        "rule": "user",
        "source": "rules/api.yaml:8:3",
        "limit": {"requests_per_unit": 20, "unit": "minute"},
        "used": 20,
        "remaining": 0,
        "reset_seconds": seconds,
    }
    return json.dumps(fields | more)


MINUTE = [
    line("14:02:59", "OK"),
    line("14:03:07"),
    line("14:03:08", "OVER_LIMIT", "bob"),
    *(line(f"14:03:{second}") for second in range(46, 60)),
    "torn",
    line("14:04:10", "OK"),
    line("14:04:20"),
]


def why(
    capsys: pytest.CaptureFixture[str], log: Path, lines: Sequence[str], *flags: str
) -> tuple[int, str]:
    log.write_text("\n".join(lines))
    arguments = ["why", "api", "user=alice", "--log", str(log), *flags]
    code = ratelimit.main(arguments, standalone_mode=False)
    printed = capsys.readouterr()
    return code, printed.out + printed.err


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "decisions.jsonl"


def test_denial_at_a_time(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a minute the first denial is told, with its limit and the denials that followed."""
    code, text = why(capsys, log, MINUTE, "--at", "14:03")

    assert code == 0
    assert text == (
        f"denied at 14:03:07 UTC on {DAY} by `user` (rules/api.yaml:8): 20 a minute, 20 used, "
        "53 s to wait; 14 further denials until 14:03:59 UTC\n"
    )


def test_kinds_of_denials(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Denials by count, by the local cache and by failure policy are told each by itself."""
    lines = [
        line("14:03:07"),
        line("14:03:08"),
        line("14:03:09", by="local_cache"),
        line("14:03:10", by="local_cache"),
        line("14:03:11", by="policy"),
    ]

    _, text = why(capsys, log, lines)
    _, as_json = why(capsys, log, lines, "--json")

    assert text.endswith(
        "; 4 further denials until 14:03:11 UTC "
        "(1 by count, 2 by the local cache, 1 by failure policy)\n"
    )
    by = {"count": 1, "local_cache": 2, "policy": 1}
    assert json.loads(as_json)["further_denials_by"] == by


def test_last_denial(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a time it is the last denial, or the first of those that it belongs to."""
    assert why(capsys, log, MINUTE)[1].startswith(f"denied at 14:04:20 UTC on {DAY} by `user`")
    assert why(capsys, log, MINUTE[:-2])[1].startswith(f"denied at 14:03:07 UTC on {DAY} by `user`")


@pytest.mark.parametrize("at", ["14:02", f"{DAY}T14:03:08Z", "13:59:59"])
def test_no_denial(log: Path, capsys: pytest.CaptureFixture[str], at: str) -> None:
    """Where there is none the command says so, and exits with 1."""
    code, text = why(capsys, log, MINUTE, "--at", at)

    assert code == 1
    assert f"no denial of user=alice in api at {at}; it has 18 decisions about it" in text


@pytest.mark.parametrize(
    ("at", "nearest"),
    [("14:02", "14:03:07"), ("14:04:05", "14:03:59"), ("14:04:15", "14:04:20")],
)
def test_nearest_denial(
    log: Path, capsys: pytest.CaptureFixture[str], at: str, nearest: str
) -> None:
    """A time that has no denial shows the nearest one; programs are told none of another time."""
    code, text = why(capsys, log, MINUTE, "--at", at)
    _, as_json = why(capsys, log, MINUTE, "--at", at, "--json")

    assert code == 1
    assert text.startswith(f"denied at {nearest} UTC on {DAY} by `user`")
    assert text.endswith("; the nearest:\n")
    assert as_json.startswith(f"{log} has no denial")


def test_what_the_log_has_instead(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is no denial it is told from when to when the log is, whoever is in it."""
    _, text = why(capsys, log, [line("14:03:08", "OK", "bob"), line("14:04:00", "OK", "bob")])

    assert text.strip().endswith(
        f"it has 0 decisions about it; its lines are from {DAY}T14:03:08Z to {DAY}T14:04:00Z"
    )


def test_file_that_is_no_decision_log(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file without any decision is not taken for a log in which nobody was denied."""
    with pytest.raises(LogError, match="is no decision log"):
        why(capsys, log, ['{"v": 1, "action": "override"}', "text"])


def test_denial_of_today() -> None:
    """The day is told if it is another one than today, and of the last denial if it is another."""
    decisions = [read_line(line(time), moment_us) for time in ("14:03:07", "14:03:59")]
    denial = denials.denial_of(decisions)
    assert denial is not None
    day_us = 86_400_000_000

    def text(now_us: int) -> str:
        return denials.sentence(denial, decisions[0].request.descriptors[0].entries, now_us)

    assert text(denial.last_us).startswith("denied at 14:03:07 UTC by `user`")
    assert text(denial.last_us + day_us).startswith(f"denied at 14:03:07 UTC on {DAY} by `user`")
    assert text(denial.last_us + day_us).endswith("1 further denial until 14:03:59 UTC")
    tomorrow = denial._replace(last_us=denial.last_us + day_us)
    assert denials.sentence(tomorrow, (), 0).endswith("until 14:03:59 UTC on 2025-11-23")


def test_rotation_while_the_log_is_opened(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is rotated between listing and opening its files is read whole, each line once."""
    older, oldest = (log.with_name(f"{log.name}.{number}") for number in (1, 2))
    older.write_text("\n".join(MINUTE[:8]))
    listed = denials.log_files

    def rotated(path: str) -> list[str]:
        files = listed(path)
        if not oldest.exists():
            older.rename(oldest)
            log.rename(older)
            log.write_text("")
        return files

    monkeypatch.setattr(denials, "log_files", rotated)
    _, text = why(capsys, log, MINUTE[8:], "--at", "14:03")

    assert "14 further denials until 14:03:59 UTC" in text


def test_rotated_files_are_read(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was rotated away meanwhile is found as well."""
    log.with_name("decisions.jsonl.1").write_text("\n".join(MINUTE[10:]))
    log.with_name("decisions.jsonl.10").write_text("\n".join(MINUTE[:10]))

    _, text = why(capsys, log, [], "--at", "14:03")

    assert "14 further denials until 14:03:59 UTC" in text


def test_hashed_log(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the key a caller is found in a log whose values are hashed, without it nobody is."""
    (tmp_path / "key").write_text("0123456789abcdef")
    name = hashed_value(b"0123456789abcdef", "alice")
    lines = [line("14:03:07", "OVER_LIMIT", name, hashed=True)]

    code, text = why(capsys, log, lines)
    assert (code, "hashed: name the key with --key-file" in text) == (1, True)
    (tmp_path / "other").write_text("fedcba9876543210")
    code, text = why(capsys, log, lines, "--key-file", str(tmp_path / "other"))
    assert (code, "hashed, with another key if it is there at all" in text) == (1, True)
    code, text = why(capsys, log, lines, "--key-file", str(tmp_path / "key"))

    assert code == 0
    assert text.startswith(f"denied at 14:03:07 UTC on {DAY} by `user`")


def test_hashed_rules_are_told_in_the_words_of_who_asks(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Values that were asked about are told as they are; those of others stay hashed."""
    (tmp_path / "key").write_text("0123456789abcdef")
    alice, other = (hashed_value(b"0123456789abcdef", value) for value in ("alice", "/other"))
    lines = [
        line("14:03:07", "OVER_LIMIT", alice, hashed=True, rule=f"user={alice} > path={other}")
    ]

    _, text = why(capsys, log, lines, "--key-file", str(tmp_path / "key"))

    assert f"by `user=alice > path={other}` (rules/api.yaml:8)" in text


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"by": "local_cache"}, "53 s to wait, known without asking the store"),
        (
            {"code": "UNAVAILABLE", "by": "policy"},
            f" at 14:03:07 UTC on {DAY}: the failure",
        ),
        ({"limit": {"requests_per_unit": 5, "unit": "hour"}}, ": 5 an hour, 20 used"),
        ({"source": "xds://plane:1/edge@7"}, "by `user` (xds://plane:1/edge@7): 20 a minute"),
        ({"source": "C:/rules.yaml:12:30"}, "by `user` (C:/rules.yaml:12): 20 a minute"),
        (
            {
                "descriptors": [{"entries": [["user", "alice"]]}, {"entries": [["path", "/x"]]}],
                "descriptor": 1,
                "rule": "path",
            },
            "by `path` (rules/api.yaml:8), for path=/x in the same request: 20 a minute",
        ),
        (
            {
                "descriptors": [{"entries": [["user", "alice"]]}, {"entries": [["user", "bob"]]}],
                "descriptor": 1,
            },
            "by `user` (rules/api.yaml:8), for user=bob in the same request: 20 a minute",
        ),
    ],
)
def test_other_grounds(
    log: Path, capsys: pytest.CaptureFixture[str], more: dict[str, object], reason: str
) -> None:
    """A denial that no count of this descriptor made is told as what it was."""
    assert reason in why(capsys, log, [line("14:03:07", **more)])[1]


@pytest.mark.parametrize("reset", ["1e999", "-1", "1e308", "NaN"])
def test_resets_that_are_no_time(log: Path, capsys: pytest.CaptureFixture[str], reset: str) -> None:
    """A log that somebody has written by hand is no reason to fail."""
    lines = [line("14:03:07").replace('"reset_seconds": 53', f'"reset_seconds": {reset}')]

    assert why(capsys, log, lines)[0] == 0
    assert reset in lines[0]


@pytest.mark.parametrize("at", ["24:00", "14:60", "14:03:60", "noon"])
def test_times_that_are_none(log: Path, capsys: pytest.CaptureFixture[str], at: str) -> None:
    """A time that is none is told, also where nothing is known of the caller."""
    for lines in (MINUTE, [line("14:03:08", "OK", "bob")]):
        with pytest.raises(SettingsError, match="--at"):
            why(capsys, log, lines, "--at", at)


def test_file_that_is_not_there(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log that is not there is told by its name; while it is rotated the rotated ones do."""
    log.with_name(f"{log.name}.1").write_text(line("14:03:07"))
    arguments = ["why", "api", "user=alice", "--log", str(log)]
    assert ratelimit.main(arguments, standalone_mode=False) == 0
    assert capsys.readouterr().out.startswith(f"denied at 14:03:07 UTC on {DAY}")

    log.with_name(f"{log.name}.1").unlink()
    with pytest.raises(LogError, match=r"decisions\.jsonl cannot be read: No such file"):
        ratelimit.main(arguments, standalone_mode=False)


def test_denial_by_an_override(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A ban is named with its reason, and all denials by it belong together."""
    one = {"id": "ab12", "kind": "ban", "until": "2026-07-02T00:00:00Z", "reason": "abuse"}
    ban = {"by": "override", "overrides": [one]}
    lines = [line(f"14:0{minute}:00", **ban) for minute in range(3, 6)]
    banned = [
        json.dumps({k: v for k, v in json.loads(one).items() if k != "limit"}) for one in lines
    ]

    assert why(capsys, log, banned)[1] == (
        f"denied at 14:03:00 UTC on {DAY}: by override "
        "(ban ab12 until 2026-07-02T00:00:00Z: abuse); 2 further denials until 14:05:00 UTC\n"
    )


def test_logs_of_several_instances(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With the logs of all instances a denial is told as if there were one."""
    other, empty = tmp_path / "other", tmp_path / "empty"
    other.write_text("\n".join(MINUTE[:5]))
    empty.write_text("")
    code, text = why(capsys, tmp_path / "log", MINUTE[5:], "--log", str(other))
    assert why(capsys, tmp_path / "all", MINUTE) == (code, text)

    code, text = why(capsys, empty, [], "--log", str(empty))
    assert (code, text.strip()) == (
        1,
        "none of these 2 logs has a denial of user=alice in api; they have 0 decisions about it",
    )

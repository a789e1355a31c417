"""Commands that say what rules mean: lint, schema, test and explain."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ratelimit_service.cli.problems import FORMATS
from ratelimit_service.rules.lint import lint
from tests.cli.ran import Ran
from tests.rules.test_mistakes import MISTAKES
from tests.servers.service import COMMAND
from tests.waiting import PATIENCE_SECONDS

TOP = Path(__file__).parents[2]


def test_lint(tmp_path: Path, rules: Path) -> None:
    """Lint prints each problem with its place, and exits with 1 if there is any."""
    bad = tmp_path / "bad.yaml"
    bad.write_text("domain: a\nunit: day\n")

    clean, result = Ran("lint", str(rules)), Ran("lint", str(rules), str(bad))

    assert (clean.code, clean.out, clean.err) == (0, "", "no problems found\n")
    assert (result.code, result.err) == (1, "1 problem found\n")
    assert result.out.startswith(f"{bad}:2:1: unit does nothing here")


@pytest.mark.parametrize(
    "arguments",
    [
        ["lint", ""],
        ["test", ""],
        ["init", ""],
        ["replay", "--rules", "", "log"],
    ],
)
def test_empty_path(arguments: list[str]) -> None:
    """An empty path, as an unset variable leaves it, is not taken for the working directory."""
    ran = Ran(*arguments)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith(": the path is empty: name a file or a directory\n")


def test_lint_formats(tmp_path: Path) -> None:
    """Lint shows the line with a caret, and says the same as JSON, to GitHub, and as SARIF."""
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        "domain: a\ndescriptors:\n- {key: a, value: a/*, rate_limit: {unit: \u202eno}}\n"
    )

    text, github = Ran("lint", str(bad)), Ran("lint", "--format", "github", str(bad))
    plain = json.loads(Ran("lint", "--format", "json", str(bad)).out)
    sarif = json.loads(Ran("lint", "--format", "sarif", str(bad)).out)

    assert text.out.splitlines()[1:3] == [
        "    3 | - {key: a, value: a/*, rate_limit: {unit: \\u202eno}}",
        "                               ^",
    ]
    assert [(each["line"], each["column"], each["level"]) for each in plain] == [
        (3, 24, "error"),
        (3, 43, "error"),
    ]
    assert github.out.startswith(f"::error file={bad},line=3,col=24,title=")
    (run,) = sarif["runs"]
    location = run["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == str(bad)
    assert location["region"] == {"startLine": 3, "startColumn": 24}
    assert {each["ruleId"] for each in run["results"]} == {each["kind"] for each in plain}


@pytest.mark.parametrize("path", sorted(MISTAKES.glob("*.yaml")), ids=lambda path: path.stem)
def test_lint_shows_every_line(path: Path) -> None:
    """Below each problem stands its line, with a caret; an empty file has none to show."""
    result = lint([path])
    shown = list(FORMATS["text"](result))

    if path.stem == "empty_file":
        assert shown == [str(each) for each in result.problems]
        return
    assert shown[::3] == [str(each) for each in result.problems]
    for problem, line, caret in zip(result.problems, shown[1::3], shown[2::3], strict=True):
        assert line.startswith(f"{problem.source.line:5} | ")
        assert caret == " " * (len(caret) - 1) + "^"
        assert 8 < len(caret) <= len(line)


@pytest.mark.parametrize(
    "before",
    [
        "a",
        "\u202e",  # shown escaped, in six columns
        "日本",  # in two columns each
        "e\u0301",  # in one
        "\t",
        "x" * 200,  # of which the end is shown
    ],
)
def test_lint_shows_where(tmp_path: Path, before: str) -> None:
    """The caret is below the place on a terminal, whatever stands before it in the line."""
    path = tmp_path / "a.yaml"
    path.write_text(
        f'domain: a\ndescriptors:\n- {{key: "{before}", rate_limit: {{unit: no, '
        "requests_per_unit: 1}}\n"
    )

    line, caret = Ran("lint", str(path)).out.splitlines()[1:3]

    drawn = line.replace("日本", "....").replace("e\u0301", ".")
    assert drawn[len(caret) - 1 :].startswith("no, requests_per_unit")


def test_lint_reads_standard_input() -> None:
    """A dash stands for standard input; a tab is called a tab."""
    done = subprocess.run(
        [COMMAND, "lint", "-"],
        input="domain: a\ndescriptors:\n- key: k\n\tvalue: x\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )

    assert done.returncode == 1
    assert done.stdout.startswith("<stdin>:4:1: this is no YAML: a tab: YAML wants spaces")
    assert Ran("lint", "-", "x").code == 2


def test_lint_hints(tmp_path: Path) -> None:
    """What is only worth knowing is printed and counted, and is no problem."""
    path = tmp_path / "queue.yaml"
    limit = "{unit: second, requests_per_unit: 5, max_wait: 2s, algorithm: leaky_bucket}"
    path.write_text(f"domain: a\ndescriptors:\n  - key: k\n    rate_limit: {limit}\n")

    ran = Ran("lint", str(path))

    assert (ran.code, ran.err) == (0, "no problems found, 1 hint\n")
    assert "Envoy does not wait: to it this queue is a meter with a burst of 10" in ran.out

    path.write_text(f"{path.read_text()}    unit: day\n")

    ran = Ran("lint", str(path))

    assert (ran.code, ran.err) == (1, "1 problem found, 1 hint\n")


def test_lint_tells_what_has_ended(tmp_path: Path) -> None:
    """A descriptor that holds no more is a hint with its line, in each format, and no problem."""
    path = tmp_path / "ended.yaml"
    limit = "rate_limit: {unit: day, requests_per_unit: 1}"
    ended = "valid_until: 0999-12-31T23:00Z"
    path.write_text(f"domain: a\ndescriptors:\n  - {{key: k, {ended}, {limit}}}\n")

    ran = Ran("lint", str(path))
    github = Ran("lint", "--format", "github", str(path))
    (plain,) = json.loads(Ran("lint", "--format", "json", str(path)).out)
    (run,) = json.loads(Ran("lint", "--format", "sarif", str(path)).out)["runs"]

    output = (
        "no request gets here: valid_until was 0999-12-31T23:00Z; write a later moment, or "
        "take it out"
    )
    assert (ran.code, ran.err) == (0, "no problems found, 1 hint\n")
    assert ran.out.splitlines() == [
        f"{path}:3:5: k: {output} [ended]",
        f"    3 |   - {{key: k, {ended}, {limit}}}",
        "            ^",
    ]
    assert github.out.startswith(f"::notice file={path},line=3,col=5,title=ended::")
    assert (plain["kind"], plain["level"], plain["message"]) == ("ended", "note", output)
    (result,) = run["results"]
    assert (result["ruleId"], result["level"]) == ("ended", "note")


def test_schema() -> None:
    """`schema` prints the JSON Schema that is published."""
    assert Ran("schema").out == (TOP / "docs" / "rules.schema.json").read_text()


def test_tests_of_rules(tmp_path: Path, rules: Path) -> None:
    """The exit status of `test` tells success, a difference, too little coverage, and problems."""
    path = tmp_path / "some.test.yaml"
    step = "{domain: demo, descriptors: [{user: a}], times: 3, expect: %s}"
    text = f"rules: {rules}\ncases: [{{name: one, steps: [{step}]}}]\n"

    path.write_text(text % "[OK]")
    problem = Ran("test", str(path))
    path.write_text(text % "OK")
    differs = Ran("test", str(path))
    path.write_text((text % "OK").replace("times: 3", "times: 2"))
    few, passed = Ran("test", str(path), "--min-coverage", "50"), Ran("test", str(tmp_path))

    assert (problem.code, problem.out) == (2, "")
    assert problem.err.startswith(f"{path}:2:")
    assert (differs.code, differs.err) == (1, "")
    assert "- expect: OK\n  + expect: OVER_LIMIT\n1 case, 1 failed\n" in differs.out
    assert (few.code, few.out) == (1, "1 case passed\n")
    assert few.err.endswith("1 of 5 rules met: 20 %\n--min-coverage 50 is not reached\n")
    assert (passed.code, passed.out, passed.err) == (0, "1 case passed\n", "")


def test_explain(rules: Path) -> None:
    """Explain tells the rule, the walk and the counter."""
    ran = Ran("explain", "--rules", str(rules), "demo", "user=a", "free=b")

    assert ran.code == 0
    assert f"rule user at {rules}:3:17: 2 per year" in ran.out
    assert "counter {" in ran.out
    assert "unlimited" in ran.out


def test_explain_names_the_order_that_would_match(tmp_path: Path) -> None:
    """Keys in another order than the rule's meet no rule, and are told the order that would."""
    path = tmp_path / "nested.yaml"
    path.write_text(
        "domain: demo\ndescriptors:\n- key: plan\n  descriptors:\n"
        "  - {key: user, rate_limit: {unit: day, requests_per_unit: 1}}\n"
    )

    turned = Ran("explain", "--rules", str(path), "demo", "user=a,plan=b")
    other = Ran("explain", "--rules", str(path), "demo", "user=a,team=b")

    assert "; in the order plan, user the rule plan > user would take it" in turned.out
    assert "in the order" not in other.out


def test_explain_beside_rules_with_problems(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What can be read is explained; the exit status says that this may not be all."""
    (tmp_path / "good.yaml").write_text("domain: demo\n")
    (tmp_path / "bad.yaml").write_text("domain: demo2\ndescriptors: 3\n")

    ran = Ran("explain", "--rules", str(tmp_path), "demo", "user=a")

    assert ran.code == 2
    assert "user=a" in ran.out
    assert "bad.yaml:2:14" in caplog.text


def test_explain_in_json(rules: Path) -> None:
    """--json gives the same for programs, one object a descriptor."""
    ran = Ran("explain", "--rules", str(rules), "--json", "demo", "user=a", "x=b")

    first, second = map(json.loads, ran.out.splitlines())
    assert (first["rule"], first["steps"][0]["taken"], second["rule"]) == ("user", "user", None)
    assert first["counter"].endswith("f31536000:4:demo4:user=1:a")


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        (["--count-denied", "none"], ""),
        ([], ""),
        (
            ["--count-denied", "reported"],
            "if it is denied: hits that a descriptor brings itself count all the same "
            "(--count-denied reported)\n",
        ),
        (
            ["--count-denied", "all"],
            "if it is denied: all hits count all the same (--count-denied all)\n",
        ),
    ],
)
def test_explain_says_what_counts_though_denied(
    rules: Path, counted: list[str], expected: str
) -> None:
    """Explain takes the flag of serve, and says what it means for a rule with limits."""
    ran = Ran("explain", *counted, "--rules", str(rules), "demo", "user=a")
    free = Ran("explain", *counted, "--rules", str(rules), "demo", "free=a")
    answer = json.loads(
        Ran("explain", *counted, "--json", "--rules", str(rules), "demo", "user=a").out
    )

    assert ran.out.partition("counter ")[2].partition("\n")[2] == expected
    assert "denied" not in free.out
    assert answer["count_denied"] == (counted[1] if counted else "none")


BUDGET = """
domain: demo
descriptors:
  - {key: tokens, rate_limit: {unit: day, requests_per_unit: 100}}
"""


@pytest.mark.parametrize(
    ("counted", "code"), [("none", "OK"), ("reported", "OVER_LIMIT"), ("all", "OVER_LIMIT")]
)
def test_rules_are_tried_as_they_will_count(tmp_path: Path, counted: str, code: str) -> None:
    """The flag of serve says for `test` and `replay`, too, whether a report counts if denied."""
    (tmp_path / "rules.yaml").write_text(BUDGET)
    request = "{domain: demo, descriptors: [{tokens: a}], hits: %d, expect: %s}"
    asks = [(0, "OK"), (60, "OK"), (60, "OVER_LIMIT"), (0, code)]
    steps = [request % each for each in asks]
    hinted = counted == "none"
    cases = tmp_path / "rules.test.yaml"
    cases.write_text(f"cases: [{{name: one, steps: [{', '.join(steps)}]}}]\n")
    log = tmp_path / "log.csv"
    lines = [
        f"2026-01-01T00:00:{second:02}Z,demo,{hits},a"
        for second, hits in enumerate([60, 60, 60, 0, 0, 0])
    ]
    log.write_text("\n".join(["time,domain,hits,tokens", *lines]) + "\n")

    tried = Ran("test", "--count-denied", counted, str(cases))
    played = Ran(
        *("replay", "--json", "--count-denied", counted),
        *("--rules", str(tmp_path / "rules.yaml"), str(log)),
    )

    assert (tried.code, tried.out) == (0, "1 case passed\n")
    assert ("hint: rule tokens of demo: it is asked with 0 hits" in tried.err) == hinted
    denied = json.loads(played.out)["denied"]
    assert denied == (2 if counted == "none" else 5)


def test_what_counts_is_a_word(rules: Path) -> None:
    """Another word than serve's is an error that names them."""
    ran = Ran("explain", "--count-denied", "some", "--rules", str(rules), "demo", "user=a")

    assert ran.code == 2
    assert "'some' is unknown: use none or reported or all" in ran.err


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket", "concurrency"])
def test_explain_says_what_cannot_owe(tmp_path: Path, algorithm: str) -> None:
    """Where reports are to count, a limit that cannot count them without room gets a hint."""
    limit = f"{{unit: day, requests_per_unit: 9, algorithm: {algorithm}}}"
    (tmp_path / "rules.yaml").write_text(
        f"domain: demo\ndescriptors:\n  - {{key: user, rate_limit: {limit}}}\n"
    )
    command = ("explain", "--rules", str(tmp_path), "demo", "user=a")

    hint = f"but {algorithm} counts only hits for which there is room: "
    assert hint in Ran(*command, "--count-denied", "reported").out
    assert hint not in Ran(*command).out

"""Hints of lint: what is allowed in rules, and yet is hardly meant.

It is long because each hint has its test, with rules that earn it and rules that do not.
"""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.model import SECOND_US, Entry
from ratelimit_service.rules.lint import lint_text
from ratelimit_service.rules.match import match
from ratelimit_service.rules.schema import parse
from ratelimit_service.rules.tree import Domain, Level

NOW_US = 1_775_000_000 * SECOND_US
"""On 31 March 2026, at 23:33:20 UTC."""

LIMIT = "rate_limit: {unit: day, requests_per_unit: 1}"


def hints(descriptors: str) -> list[tuple[str, str]]:
    """Path and kind of each hint about these descriptors, none of which is a problem."""
    text = "domain: a\ndescriptors:\n" + textwrap.dedent(descriptors)
    problems = lint_text("a.yaml", text.encode(), lambda: NOW_US).problems
    assert all(problem.hint for problem in problems), problems
    return [(problem.path, problem.kind) for problem in problems]


def test_unreachable() -> None:
    """A pattern that takes all values of a later one, or of the key alone, is pointed at."""
    assert hints(
        f"""\
        - {{key: k, value: "a*", {LIMIT}}}
        - {{key: k, value: "ab*c", {LIMIT}}}
        - {{key: k, value: "ab", {LIMIT}}}
        - {{key: k, value: "*a", {LIMIT}}}
        - {{key: k, {LIMIT}}}
        - {{key: m, value: "**", {LIMIT}}}
        - {{key: m, {LIMIT}}}
        - {{key: n, descriptors: [{{key: k, value: "*", {LIMIT}}}, {{key: k, {LIMIT}}}]}}
        """
    ) == [("k=ab*c", "unreachable"), ("m", "unreachable"), ("n > k", "unreachable")]


def test_unreachable_because_of_a_group() -> None:
    """Where addresses are grouped, an exact value must be a network as group writes it."""
    assert hints(
        f"""\
        - {{key: k, group: {{ipv4: 24, ipv6: 64}}, value: 10.0.1.7, {LIMIT}}}
        - {{key: k, group: {{ipv4: 24, ipv6: 64}}, value: 10.0.2.0/24, {LIMIT}}}
        - {{key: k, group: {{ipv4: 24, ipv6: 64}}, value: 10.0.3.0/25, {LIMIT}}}
        - {{key: k, group: {{ipv4: 24, ipv6: 64}}, value: "10.0.4.*", {LIMIT}}}
        - {{key: k, group: {{ipv4: 24, ipv6: 64}}, value: "2001:DB8::/64", {LIMIT}}}
        - {{key: k, group: {{ipv4: 24, ipv6: 64}}, value: "2001:db8:1::/64", {LIMIT}}}
        - {{key: k, group: {{ipv4: 24, ipv6: 64}}, one_of: [unknown, 10.0.5.9], {LIMIT}}}
        - {{key: k, group: {{ipv6: 64}}, one_of: [nobody, 10.0.6.9], {LIMIT}}}
        - {{key: k, group: {{ipv4: 24, ipv6: 64}}, {LIMIT}}}
        """
    ) == [
        ("k=10.0.1.7", "unreachable"),
        ("k=10.0.3.0/25", "unreachable"),
        ("k=2001:DB8::/64", "unreachable"),
        ("k=one_of(10.0.5.9,unknown)", "unreachable"),
    ]


def test_unreachable_by_another_kind() -> None:
    """A pattern can stand before all of a regular expression's values, and the other way."""
    assert hints(
        f"""\
        - {{key: k, value: "/a/*", {LIMIT}}}
        - {{key: k, regex: "/a/[0-9]+", {LIMIT}}}
        - {{key: k, regex: "/a/?[0-9]+", {LIMIT}}}
        - {{key: k, regex: "/b/.*", {LIMIT}}}
        - {{key: k, value: "/b/x*", {LIMIT}}}
        - {{key: k, value: "*/b/", {LIMIT}}}
        - {{key: m, value: "*", {LIMIT}}}
        - {{key: m, regex: "[0-9]+", {LIMIT}}}
        - {{key: m, one_of: [a, b], {LIMIT}}}
        - {{key: m, cidr: 10.0.0.0/8, {LIMIT}}}
        - {{key: n, regex: ".*", {LIMIT}}}
        - {{key: n, value: "a*", {LIMIT}}}
        - {{key: n, {LIMIT}}}
        """
    ) == [
        ('k=regex("/a/[0-9]+")', "unreachable"),
        ("k=/b/x*", "unreachable"),
        ('m=regex("[0-9]+")', "unreachable"),
        ("n=a*", "unreachable"),
    ]  # the key n has the values that are too long for an expression


@pytest.mark.parametrize("own", ["valid_until: 2030-01-01T00:00Z", "group: {ipv4: 24}"])
def test_reached_later_or_otherwise(own: str) -> None:
    """What comes behind a pattern that ends, or that sees networks, is reached all the same."""
    assert (
        hints(
            f"""\
            - {{key: k, value: "1*", {own}, {LIMIT}}}
            - {{key: k, value: "10*", {LIMIT}}}
            - {{key: m, value: "*", valid_until: 2030-01-01T00:00Z, {LIMIT}}}
            - {{key: m, {LIMIT}}}
            """
        )
        == []
    )


@given(
    st.lists(st.text("ab*", min_size=1, max_size=4), min_size=1, max_size=5, unique=True),
    st.text("ab*", max_size=6),
)
def test_unreachable_is_never_reached(values: list[str], value: str) -> None:
    """No value ever meets a node that is said to be unreachable, but a text like its own."""
    nodes = "".join(f"- {{key: k, value: '{value}', {LIMIT}}}\n" for value in values)
    text = f"domain: a\ndescriptors:\n{nodes}- {{key: k, {LIMIT}}}\n"
    problems = lint_text("a.yaml", text.encode()).problems
    unreachable = {problem.source.line for problem in problems if problem.kind == "unreachable"}
    domain = Domain("a", Level.of(parse("a.yaml", text.encode()).nodes))

    rule = match(domain, (Entry("k", value),)).rule

    assert rule is not None
    assert value in values or rule.source.line not in unreachable


@pytest.mark.parametrize(
    ("value", "looks"),
    [
        ("10.0.0.0/8", True),
        ("10.0.0.1/8", True),
        ("2001:db8::/32", True),
        ("10.0.0.1-10.0.0.9", True),
        ("^admin", True),
        ("v[0-9]", True),
        ("(get|put)", True),
        ("/api/.*", True),
        ("10.1.*", False),
        (r"\d", True),
        ("10.0.0.1", False),
        ("/api/v1", False),
        ("10/8", False),
        ("a-b", False),
        ("$5", False),
        ("GET (all)", False),
    ],
)
def test_values_that_look_like_something_else(value: str, looks: bool) -> None:
    """Networks, ranges and regular expressions as a value are pointed at: they are text here."""
    problems = hints(f"- {{key: k, value: '{value}', {LIMIT}}}")
    assert [kind for _, kind in problems] == ["literal_value"] * looks


@pytest.mark.parametrize(
    ("limits", "pointless"),
    [
        ("{unit: second, requests_per_unit: 10}, {unit: minute, requests_per_unit: 600}", True),
        ("{unit: second, requests_per_unit: 10}, {unit: minute, requests_per_unit: 599}", False),
        ("{unit: day, requests_per_unit: 5}, {unit: second, requests_per_unit: 5}", False),
        ("{unit: second, requests_per_unit: 10, algorithm: token_bucket}, "
         "{unit: minute, requests_per_unit: 9000}", False),
        ("{unit: second, requests_per_unit: 10}, "
         "{unit: minute, requests_per_unit: 600, count_denied: true}", False),
        ("{unit: minute, requests_per_unit: 20, group: {ipv6: 64}}, "
         "{unit: hour, requests_per_unit: 2000, group: {ipv6: 48}}", False),
        ("{unit: second, requests_per_unit: 10, group: {ipv6: 64}}, "
         "{unit: minute, requests_per_unit: 600, group: {ipv6: 64}}", True),
        ("{unit: hour, requests_per_unit: 200}, "
         "{unit: hour, requests_per_unit: 10, when: {days: [mon-fri]}}", False),
        ("{window: 7s, requests_per_unit: 1}, {window: 60s, requests_per_unit: 600}", False),
    ],
)  # fmt: skip
def test_pointless_limits(limits: str, pointless: bool) -> None:
    """A limit that another one of the list keeps everybody from reaching is pointed at."""
    problems = hints(f"- {{key: k, rate_limits: [{limits}]}}")
    assert [kind for _, kind in problems] == ["pointless"] * pointless


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("rate_limit: {unit: hour, requests_per_unit: 9, sync: leased, soft: 50%}", "soft"),
        ("rate_limit: {unit: hour, requests_per_unit: 9, sync: leased, count_denied: true}",
         "count_denied"),
        ("shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 9, sync: leased}",
         "shadow_mode"),
        ("quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 9, sync: leased}",
         "quota_mode"),
        ("charge: first, rate_limits: [{name: a, unit: hour, requests_per_unit: 9, sync: leased}, "
         "{name: b, unit: day, requests_per_unit: 9}]", "charge: first"),
        ("rate_limit: {unit: hour, requests_per_unit: 9, sync: leased}", ""),
        ("shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 9}", ""),
    ],
)  # fmt: skip
def test_leased_limits_that_ask_all_the_same(rule: str, why: str) -> None:
    """Where every hit asks the store in any case, sync: leased is pointed at."""
    text = f"domain: a\ndescriptors:\n- {{key: k, {rule}}}"
    found = [each.message for each in lint_text("a.yaml", text.encode()).problems if each.hint]

    said = f"sync: leased does nothing beside {why}: every hit asks the store"
    assert [each for each in found if each.startswith("sync")] == [said] * bool(why)


@pytest.mark.parametrize(
    ("value", "instead"),
    [
        ("10.0.0.0/8", "'cidr: 10.0.0.0/8'"),
        ("10.0.0.0-10.0.0.255", "'cidr: [10.0.0.0/24]'"),
        ("10.0.0.1-10.0.0.9", "'cidr: [10.0.0.1/32, 10.0.0.2/31, …]'"),
    ],
)
def test_what_to_write_instead(value: str, instead: str) -> None:
    """The hint shows the key that takes what was meant."""
    text = f"domain: a\ndescriptors:\n- {{key: k, value: {value}, {LIMIT}}}"
    (problem,) = lint_text("a.yaml", text.encode()).problems

    assert problem.message.endswith(f"; write {instead} in its place")


def test_reserves_that_leave_nothing() -> None:
    """A reserve is rounded up to whole hits. If that is the whole limit, it is pointed at."""
    pool = "unit: minute, requests_per_unit: 10, pool: p"
    bucket = f"{pool}2, algorithm: token_bucket"
    assert hints(
        f"""\
        - {{key: a, rate_limit: {{{pool}}}}}
        - {{key: b, rate_limit: {{{pool}, reserve: 90%}}}}
        - {{key: c, rate_limit: {{{pool}, reserve: 90.1%}}}}
        - key: below
          descriptors:
          - {{key: d, rate_limit: {{{bucket}, reserve: 90%}}}}
          - {{key: e, rate_limit: {{{bucket}, reserve: 91%}}}}
        """
    ) == [("c", "reserve"), ("below > e", "reserve")]


def test_what_has_ended() -> None:
    """From its minute on, what a descriptor says and all below it is said to reach nobody."""
    assert hints(
        f"""\
            - {{key: a, valid_until: 2026-03-31T23:33Z, value: 10.0.0.0/8, {LIMIT}}}
            - {{key: b, valid_until: 2026-03-31T23:34Z, {LIMIT}}}
            - {{key: c, valid_until: 2026-04-01T01:33+02:00, value: "*", {LIMIT}}}
            - {{key: c, {LIMIT}}}
            - key: d
              valid_until: 1969-01-01T00:00Z
              descriptors:
              - {{key: e, valid_until: 2026-01-01T00:00Z, {LIMIT}}}
              - {{key: f, value: 10.0.0.0/8, {LIMIT}}}
            - key: g
              descriptors:
              - {{key: h, valid_until: 2026-01-01T00:00Z, {LIMIT}}}
            - {{key: i, value: "*", {LIMIT}}}
            - {{key: i, value: "1*", valid_until: 2026-01-01T00:00Z, {LIMIT}}}
            """
    ) == [
        ("a=10.0.0.0/8", "ended"),
        ("c=*", "ended"),
        ("d", "ended"),
        ("g > h", "ended"),
        ("i=1*", "ended"),
    ]


def test_queues_that_stay_empty() -> None:
    """A queue of a rule that denies nobody is pointed at."""
    assert hints(
        f"""\
        - {{key: a, on_limit: enqueue, {LIMIT}}}
        - {{key: b, on_limit: enqueue, shadow_mode: true, {LIMIT}}}
        - {{key: c, on_limit: enqueue, rate_limit: {{unlimited: true}}}}
        - {{key: d, on_limit: deny, rate_limit: {{unlimited: true}}}}
        """
    ) == [("b", "idle_queue"), ("c", "idle_queue")]


@pytest.mark.parametrize(
    ("limit", "unfitting"),
    [
        ("algorithm: concurrency, unit: second", True),
        ("algorithm: concurrency, window: 2s", False),
        ("window: 7h", True),
        ("window: 36h", True),
        ("window: 7h, anchor: first_hit", False),
        ("window: 7h, algorithm: sliding_window", False),
        ("window: 6h", False),
        ("window: 90s", False),
        ("unit: week", False),
        ("unit: month", False),
        ("unit: month, per: calendar", False),
    ],
)
def test_windows_that_do_not_fit(limit: str, unfitting: bool) -> None:
    """A window of which the algorithm makes something else than is meant is pointed at."""
    problems = hints(f"- {{key: k, rate_limit: {{requests_per_unit: 5, {limit}}}}}")
    assert [kind for _, kind in problems] == ["window"] * unfitting


@pytest.mark.parametrize(
    ("number", "message"),
    [
        ("010", "YAML reads '010' as 8: write 8 or 10"),
        ("0100", "YAML reads '0100' as 64: write 64 or 100"),
        ("0x10", "YAML reads '0x10' as 16: write 16"),
        ("0b11", "YAML reads '0b11' as 3: write 3"),
        ("1_000", "YAML reads '1_000' as 1000: write 1000"),
        ("1:30", "YAML reads '1:30' as 90: write 90"),
        ("10", ""),
        ("+10", ""),
        ("0", ""),
        ("007", ""),
    ],
)
def test_numbers_that_are_not_read_as_they_look(number: str, message: str) -> None:
    """A number that YAML 1.1 does not read as decimal is pointed at, with what it is read as."""
    limit = f"{{unit: day, requests_per_unit: {number}}}"
    text = f"domain: a\ndescriptors:\n- {{key: k, rate_limit: {limit}}}"

    problems = lint_text("a.yaml", text.encode()).problems

    assert [(each.source.column, each.message, each.hint) for each in problems] == (
        [(55, message, True)] if message else []
    )


def test_every_number_that_is_not_read_as_it_looks() -> None:
    """All keys that take a number are looked at, in each limit; text is what it is."""
    assert hints(
        """\
        - {key: a, value: 010, rate_limit: {unit: day, requests_per_unit: 010}}
        - {key: b, value: 0x10, rate_limit: {unit: day, requests_per_unit: 010}}
        - {key: c, rate_limit: {unit: day, unit_multiplier: 02, requests_per_unit: 9}}
        - {key: d, rate_limit: {unit: day, unit_multiplier: 010, requests_per_unit: 9}}
        - key: e
          rate_limit: {algorithm: token_bucket, unit: day, burst: 020, requests_per_unit: 9}
        - {key: f, group: {ipv4: 030}, rate_limit: {unit: day, requests_per_unit: 9}}
        - key: g
          metadata: {zip: 010, time: 12:30, at: 1.50, no: "010"}
          rate_limit: {unit: day, requests_per_unit: 9}
        """
    ) == [(path, "odd_number") for path in ("a=010", "b=0x10", "d", "e", "f", "g", "g")]


def test_serving_gives_no_advice_on_numbers() -> None:
    """Only lint says what is allowed: a file that is served is not read again because of it."""
    text = "domain: a\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 010}}]"

    assert not parse("a.yaml", text.encode()).problems


def test_keys_behind_which_nothing_stands() -> None:
    """A key whose content is forgotten or a comment is pointed at, with what to write."""
    text = """\
domain: a
descriptors:
- key: a
  rate_limit:
- key: b
  rate_limits:
  # - {unit: day, requests_per_unit: 1}
- key: c
  rate_limit: {unit: day, requests_per_unit: 1}
  descriptors:
"""
    problems = lint_text("a.yaml", text.encode()).problems

    assert all(each.hint for each in problems)
    assert list(map(str, problems)) == [
        "a.yaml:4:3: a: rate_limit is empty, so nothing is limited here: write unit and "
        "requests_per_unit, or take the key out [empty]",
        "a.yaml:6:3: b: rate_limits is empty, so nothing is limited here: write a list of limits, "
        "or take the key out [empty]",
        "a.yaml:10:3: c: descriptors is empty, so nothing stands below: write some, or take the "
        "key out [empty]",
    ]


def test_what_is_left_out_is_meant() -> None:
    """No rate_limit is how exceptions are written; and null or an empty list are no oversight."""
    assert (
        hints(
            f"""\
            - {{key: a, value: b}}
            - {{key: c, rate_limit: null, rate_limits: ~, descriptors: []}}
            - {{key: d, descriptors: [{{key: e}}]}}
            - {{key: f, rate_limits: , {LIMIT}}}
            """
        )
        == []
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "domain: a",
            "1:1: there are no descriptors, so this file limits nothing: write some",
        ),
        (
            "answer: {body: json}\ndomain: a",
            "1:1: there are no descriptors, so this file limits nothing: write some",
        ),
        (
            "domain: a\ndescriptors:\n",
            "2:1: descriptors is empty, so this file limits nothing: write some, or take the key "
            "out",
        ),
        ("domain: a\nshard_by: domain", ""),
        ("domain: a\ndescriptors: []", ""),
    ],
)
def test_files_without_rules(text: str, message: str) -> None:
    """A file that says nothing but its domain is pointed at; one that places counters is not."""
    problems = lint_text("f", text.encode()).problems

    assert all(each.hint for each in problems)
    assert list(map(str, problems)) == ([f"f:{message} [empty]"] if message else [])
    assert not parse("f", text.encode()).problems


@pytest.mark.parametrize(
    "value", ["10.0.0.0/8", "2001:db8::/64", "10.1.0.0/16"], ids=["wide", "ipv6", "narrow"]
)
def test_networks_that_envoy_sends(value: str) -> None:
    """Envoy's masked_remote_address is a network itself, so its values are compared as text."""
    text = "- {key: %s, value: '%s', " + LIMIT + "}"

    assert hints(text % ("masked_remote_address", value)) == []
    assert [kind for _, kind in hints(text % ("remote_address", value))] == ["literal_value"]


@pytest.mark.parametrize("value", ["{{ .Values.plan }}", "${PLAN}", "$(PLAN)", "\u201cgold\u201d"])
def test_values_that_nobody_has_written(value: str) -> None:
    """A value that a tool should have replaced, or has made, gets a hint at its origin."""
    text = f"- {{key: plan, value: '{value}', {LIMIT}}}"

    assert [kind for _, kind in hints(text)] == ["literal_value"]


@pytest.mark.parametrize("domain", ["'{{ .Values.domain }}'", "${DOMAIN}", "\u201cedge\u201d"])
def test_a_domain_that_nobody_has_written(domain: str) -> None:
    """A domain that a tool should have replaced, or has made, is asked for by nobody."""
    text = f"domain: {domain}\ndescriptors: [{{key: a, {LIMIT}}}]\n"

    problems = lint_text("a.yaml", text.encode())

    assert [(each.kind, each.hint) for each in problems.problems] == [("literal_value", True)]


def test_values_without_a_fallback() -> None:
    """Where several values of a key have limits and others none, that may be forgotten."""
    values = [f"- {{key: plan, value: {each}, {LIMIT}}}\n" for each in ("free", "basic")]
    fallback = f"- {{key: plan, {LIMIT}}}\n"
    route = "".join(values).replace("plan", "generic_key")
    exempt = "- {key: plan, value: gold, rate_limit: {unlimited: true}}\n"

    assert hints("".join(values)) == [("plan=basic", "no_fallback")]
    assert hints("".join(values) + fallback) == []
    assert hints(values[0]) == []
    assert hints(route) == []
    assert hints("".join(values) + exempt) == []


@pytest.mark.parametrize(
    ("night", "gap"),
    [
        ("{days: [mon-fri], from: '18:00', to: '08:00'}", "Mon 00:00-08:00"),
        ("{days: [sun-thu], from: '18:00', to: '08:00'}", "Fri 18:00-24:00"),
        ("{days: [sun-fri], from: '19:00', to: '08:00'}", "Mon 18:00-19:00, and at other times"),
        ("{days: [sun-fri], from: '18:00', to: '08:00'}", ""),
        ("{from: '18:00', to: '08:00'}", ""),
    ],
)
def test_times_at_which_no_limit_holds(night: str, gap: str) -> None:
    """Limits that share the week out, and leave a part of it to none, get a hint at that part."""
    text = f"""domain: a
descriptors:
  - key: client
    rate_limits:
      - {{unit: day, requests_per_unit: 1, when: {{days: [mon-fri], from: '08:00', to: '18:00'}}}}
      - {{unit: day, requests_per_unit: 2, when: {night}}}
      - {{unit: day, requests_per_unit: 3, when: {{days: [sat, sun]}}}}
"""

    problems = [each.message for each in lint_text("a.yaml", text.encode()).problems]

    assert [each.partition(": a night")[0] for each in problems] == (
        [f"no limit holds on {gap}"] if gap else []
    )


def test_one_limit_with_times_is_meant() -> None:
    """A single limit that holds at some times leaves the others free on purpose."""
    assert (
        hints(
            "- {key: a, rate_limit: {unit: day, requests_per_unit: 1, when: {to: '8:00'}}}".replace(
                "8:00", "08:00"
            )
        )
        == []
    )


def test_what_can_never_pay() -> None:
    """Of limits that pay in turn one without room never pays, and one alone has nobody behind it.

    None of them is held against another one for being tighter: each is charged by itself.
    """
    assert hints(
        """\
        - key: k
          charge: first
          rate_limits:
            - {unit: day, requests_per_unit: 5, name: a}
            - {unit: hour, requests_per_unit: 5, name: b}
            - {unit: minute, requests_per_unit: 0, name: c}
        - key: m
          charge: first
          rate_limits: [{unit: day, requests_per_unit: 5, name: a}]
        """
    ) == [("k", "pointless"), ("m", "pointless")]

"""Every key of a rule file: where it stands, what it takes, and the sentence that explains it.

The reader's lists of keys, the JSON Schema and the tables of docs/rules.md are made of these
rows, which is why they stand in one long module. What an algorithm or a matcher adds is declared
there. How values are read does not live here (`schema`, `limits`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ratelimit_service.algorithms import ALGORITHMS, DEFAULT, PARAMETERS
from ratelimit_service.model import (
    HEADER_NAME,
    MAX_ADDEND,
    PLACEHOLDERS,
    Body,
    FailurePolicy,
    HeaderSet,
    Parameter,
    Reset,
    Takes,
    Unit,
)
from ratelimit_service.rules.matchers import registry
from ratelimit_service.rules.matchers.matcher import ONE_OR_MORE
from ratelimit_service.rules.problem import MAX_TEXT

__all__ = [
    "ANSWER_KEYS",
    "AT_TOP",
    "CHARGE",
    "CONTENT_TYPE",
    "DURATION",
    "GROUP_KEYS",
    "IN_ANSWER",
    "IN_LIMIT",
    "LIMIT_KEYS",
    "LINK",
    "MAX_LIMITS",
    "MAX_NAME",
    "ON_EXPIRY",
    "ON_LIMIT",
    "PERCENT",
    "REFERENCE_KEYS",
    "REPLACES_KEYS",
    "REQUIRED",
    "ROOT_KEYS",
    "SYNCS",
    "UNITS",
    "WHEN_KEYS",
    "WINDOW",
    "RuleKey",
    "descriptor_keys",
    "key_locations",
    "on_descriptor",
]

UNITS: Final = {unit.name.lower(): unit for unit in Unit}
WINDOW: Final = re.compile(r"(\d{1,12})([smhdw])")
REQUIRED: Final = "required"
DURATION: Final = re.compile(r"(\d{1,12})(ms|[smhdw])")
PERCENT: Final = re.compile(r"(\d{1,3})(?:\.(\d{1,4}))?%")

CONTENT_TYPE: Final = re.compile(r"[\w.+-]{1,64}/[\w.+-]{1,64}(; ?charset=[\w-]{1,32})?", re.ASCII)
LINK: Final = re.compile(r"https?://[!-~]{1,1000}")

MAX_NAME: Final = 256
"""Characters of a name: an answer has one for each of its descriptors."""

MAX_LIMITS: Final = 16
"""Of one descriptor: every one of them costs as much as a descriptor."""

REPLACES_KEYS: Final = ("name",)
WHEN_KEYS: Final = ("days", "from", "to", "time_zone")
GROUP_KEYS: Final = ("ipv4", "ipv6")
SYNCS: Final = ("exact", "leased")
ON_LIMIT: Final = ("deny", "enqueue")
ON_EXPIRY: Final = ("release", "charge")
CHARGE: Final = ("all", "first")

Shape = Mapping[str, object]
"""What may stand under a key, as a JSON Schema. Null is nothing, wherever a key may be left out."""

TEXT: Final[Shape] = {"type": ["string", "number", "boolean", "null"]}
"""Text needs no quotes: `010`, `on` and `1.50` are these characters."""
_NEEDED_TEXT: Final[Shape] = {"type": ["string", "number", "boolean"], "minLength": 1}
_SWITCH: Final[Shape] = {"type": ["boolean", "null"]}
_DESCRIPTORS: Final[Shape] = {
    "type": ["array", "null"],
    "items": {"$ref": "#/definitions/descriptor"},
}


def _number(least: int, most: int) -> Shape:
    return {"type": ["integer", "null"], "minimum": least, "maximum": most}


def _group(help_text: str) -> RuleKey:
    shape = {
        "type": ["object", "null"],
        "properties": {"ipv4": _number(0, 32), "ipv6": _number(0, 128)},
        "minProperties": 1,
        "additionalProperties": False,
    }
    return RuleKey("group", shape, help_text)


def _word(words: Iterable[str]) -> Shape:
    """One of some words, in capitals or not; editors offer those of the first list."""
    known = list(words)
    any_case = "|".join(
        "".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in word) for word in known
    )
    return {"anyOf": [{"enum": [*known, None]}, {"type": "string", "pattern": f"^({any_case})$"}]}


def _matching(pattern: re.Pattern[str]) -> Shape:
    return {"type": ["string", "null"], "pattern": f"^{pattern.pattern}$"}


class RuleKey(NamedTuple):
    """One key: what may stand under it, the sentence of docs/rules.md, and what holds without it.

    `help` and `default` are Markdown.
    """

    name: str
    shape: Shape
    help: str
    default: str = "none"

    @property
    def required(self) -> bool:
        """Whether it may not be left out (in a limit: where nothing stands in its place)."""
        return self.default == REQUIRED


def _words_shape(most: int) -> Shape:
    return {**TEXT, "maxLength": most}


IN_ANSWER: Final = (
    RuleKey(
        "headers",
        _word(map(str, HeaderSet)),
        f"Which headers tell callers their limits: {', '.join(f'`{each}`' for each in HeaderSet)}.",
        "`--headers`",
    ),
    RuleKey(
        "body",
        _word(map(str, Body)),
        "The body of a denial: `none`, `text`, `json`, or `problem` (RFC 9457).",
        "`--denial-body`",
    ),
    RuleKey(
        "template",
        _words_shape(MAX_TEXT),
        "The body of a denial instead. In it stand "
        + ", ".join(f"`{{{each}}}`" for each in PLACEHOLDERS)
        + "; a brace of its own is written twice.",
    ),
    RuleKey(
        "content_type",
        _matching(CONTENT_TYPE),
        "What the template is, as `text/html; charset=utf-8`.",
        "`text/plain`",
    ),
    RuleKey(
        "description",
        _words_shape(MAX_TEXT),
        "A sentence for people, which bodies of denials show.",
    ),
    RuleKey("link", _matching(LINK), "Where people can read more, shown beside it."),
    RuleKey(
        "reset",
        _word(map(str, Reset)),
        "What the header with the reset says: `seconds` from now, or `unix` time.",
        "`--reset-value`",
    ),
    RuleKey(
        "limit_header",
        _matching(HEADER_NAME),
        "The name of the header with the limit; not in the set `ietf`.",
        "`--limit-header`",
    ),
    RuleKey(
        "remaining_header",
        _matching(HEADER_NAME),
        "The name of the header with the remaining hits.",
        "`--remaining-header`",
    ),
    RuleKey(
        "reset_header",
        _matching(HEADER_NAME),
        "The name of the header with the reset.",
        "`--reset-header`",
    ),
)
"""What may stand in `answer`."""

_ANSWER: Final[Shape] = {"$ref": "#/definitions/answer"}

AT_TOP: Final = (
    RuleKey(
        "domain",
        {**_NEEDED_TEXT, "maxLength": MAX_TEXT},
        "What callers ask for; matched exactly. At most 4,096 characters.",
        REQUIRED,
    ),
    RuleKey(
        "shard_by",
        {
            "anyOf": [
                {"enum": ["domain", None]},
                {"type": "array", "items": {**TEXT, "minLength": 1}, "minItems": 1},
            ]
        },
        "The keys of the entries that [place a counter](redis.md#what-places-a-counter) in a "
        "shard, or `domain`.",
        "all entries",
    ),
    RuleKey(
        "answer",
        _ANSWER,
        "How answers look, for all rules of the file that do not say it themselves; see "
        "[answers](#what-answers-say).",
    ),
    RuleKey(
        "reservations",
        _SWITCH,
        "All limits of the file take [reservations](#reservations), unless one says otherwise.",
        "`false`",
    ),
    RuleKey("descriptors", _DESCRIPTORS, "The rules' first level."),
)
"""What may stand at the top of a file."""

_ON_DESCRIPTOR: Final = (
    RuleKey(
        "rate_limit",
        {"$ref": "#/definitions/limit"},
        "The limit for descriptors that end here. Without one nothing is limited here.",
    ),
    RuleKey(
        "rate_limits",
        {
            "type": ["array", "null"],
            "items": {"$ref": "#/definitions/limit"},
            "minItems": 1,
            "maxItems": MAX_LIMITS,
        },
        "A list of them instead; see [several limits](#several-limits).",
    ),
    RuleKey(
        "charge",
        _word(CHARGE),
        "Which limits of the list a request is charged on: `all`, or the `first` that has room; "
        "see [limits that pay in turn](#limits-that-pay-in-turn).",
        "`all`",
    ),
    RuleKey("descriptors", _DESCRIPTORS, "Rules for descriptors with further entries."),
    RuleKey(
        "shadow_mode",
        _SWITCH,
        "Count, but deny nothing; the metrics show what would have been denied.",
        "`false`",
    ),
    RuleKey(
        "quota_mode",
        _SWITCH,
        "Deny only when every quota rule of the request is over; see [quotas](#quotas).",
        "`false`",
    ),
    RuleKey(
        "on_limit",
        _word(ON_LIMIT),
        "What becomes of a request that is over the limit: `deny`, or `enqueue` to put it into a "
        "queue as well; see [queues](#queues).",
        "`deny`",
    ),
    RuleKey(
        "share_threshold",
        _SWITCH,
        "All values that match here share one counter. Needs more than one: a `*` in `value`, "
        "or a key that takes several.",
        "`false`",
    ),
    RuleKey(
        "valid_until",
        TEXT,
        "From then on the descriptor, and all below it, is as if it were not there; see "
        "[times](#times).",
    ),
    _group(
        "Addresses of one network count as one caller, as `{ipv4: 24, ipv6: 64}`; see "
        "[networks](#networks-as-callers).",
    ),
    RuleKey(
        "value_to_metric",
        _SWITCH,
        "Metrics show the runtime value of this entry.",
        "`false`",
    ),
    RuleKey(
        "detailed_metric",
        _SWITCH,
        "Metrics show the runtime values of all entries.",
        "`false`",
    ),
    RuleKey(
        "metadata",
        {"type": ["object", "null"]},
        "Any mapping; returned when the rule passes and `--dynamic-metadata` is on. At most "
        "4,096 characters as JSON.",
    ),
    RuleKey(
        "answer",
        _ANSWER,
        "Headers and bodies of this rule's answers; see [answers](#what-answers-say).",
    ),
)


def on_descriptor() -> tuple[RuleKey, ...]:
    """What may stand on a descriptor."""
    return (
        RuleKey(
            "key",
            {**_NEEDED_TEXT, "maxLength": MAX_TEXT},
            "The key of the entry to match. Keys and values have at most 4,096 characters.",
            REQUIRED,
        ),
        *(RuleKey(each.key, each.shape, each.help, each.default) for each in registry.kinds()),
        *_ON_DESCRIPTOR,
    )


def _of_parameter(parameter: Parameter) -> RuleKey:
    if parameter.takes is Takes.NUMBER:
        shape = _number(parameter.least, parameter.most)
    elif parameter.takes is Takes.DURATION:
        shape = _matching(DURATION)
    else:
        shape = _word(parameter.words) if parameter.words else TEXT
    default = parameter.default
    return RuleKey(
        parameter.name, shape, parameter.help, default if default == "none" else f"`{default}`"
    )


REFERENCE_KEYS: Final = frozenset(
    (
        *("domain", "descriptors", "key", "value", "rate_limit"),
        *("shadow_mode", "quota_mode", "detailed_metric", "value_to_metric", "share_threshold"),
        *("metadata", "unit", "requests_per_unit", "unlimited", "name", "replaces"),
    )
)
"""The keys that envoyproxy/ratelimit knows. It takes each of them anywhere in a file."""

IN_LIMIT: Final = (
    RuleKey(
        "unit",
        _word(UNITS),
        "`second`, `minute`, `hour`, `day`, `week`, `month` (30 days), `year` (365 days).",
        REQUIRED,
    ),
    RuleKey(
        "unit_multiplier",
        _number(1, MAX_ADDEND),
        "The window in units: `unit: minute` and 5 is five minutes. At most 285 years.",
        "1",
    ),
    RuleKey(
        "window",
        _matching(WINDOW),
        "Instead of the two: a number with `s`, `m`, `h`, `d` or `w`, as `90s`. Answers show it "
        "in the largest whole unit.",
    ),
    RuleKey(
        "requests_per_unit",
        _number(0, MAX_ADDEND),
        f"Hits in a window, 0 to {MAX_ADDEND}; 0 denies every hit.",
        REQUIRED,
    ),
    RuleKey(
        "unlimited",
        _SWITCH,
        "Never deny; hits show in the metrics. Excludes what says how to count.",
        "`false`",
    ),
    RuleKey(
        "name",
        _words_shape(MAX_NAME),
        "Shown to callers in `current_limit`; the target of `replaces`.",
    ),
    RuleKey(
        "replaces",
        {
            "type": ["array", "null"],
            "items": {
                "type": "object",
                "properties": {"name": {**_NEEDED_TEXT, "maxLength": MAX_NAME}},
                REQUIRED: ["name"],
                "additionalProperties": False,
            },
        },
        "`- name: x` for each rule that does not apply beside this one.",
    ),
    RuleKey(
        "algorithm",
        _word(ALGORITHMS),
        "How hits are counted: see [algorithms](#algorithms).",
        f"`{DEFAULT.name}`",
    ),
    *map(_of_parameter, PARAMETERS.values()),
    RuleKey(
        "soft",
        _matching(PERCENT),
        "How far the limit may be passed with a warning, as `10%`; see "
        "[soft limits](#soft-limits).",
    ),
    _group(
        "The same as on a descriptor, for this limit alone; see [networks](#networks-as-callers).",
    ),
    RuleKey(
        "pool",
        _words_shape(MAX_NAME),
        "All limits with this name charge one counter; see [reserves](#reserves).",
    ),
    RuleKey(
        "reserve",
        _matching(PERCENT),
        "The part of the `pool` that this limit leaves to the others, as `20%`.",
    ),
    RuleKey(
        "count_by",
        {"type": ["array", "null"], "items": {**TEXT, "minLength": 1}, "minItems": 1},
        "In a list with `charge: first`: only the entries with these keys tell counters apart, as "
        "`[org, team]`.",
        "all entries",
    ),
    RuleKey(
        "when",
        {
            "type": ["object", "null"],
            "properties": {
                "days": {"anyOf": [ONE_OR_MORE, {"type": "null"}]},
                **dict.fromkeys(WHEN_KEYS[1:], TEXT),
            },
            "additionalProperties": False,
        },
        "The limit holds only at these times, as `{days: [mon-fri], from: '08:00', to: '18:00'}`; "
        "see [times](#times).",
        "always",
    ),
    RuleKey(
        "count_denied",
        _SWITCH,
        "Count hits of denied requests too; see [budgets](#budgets). Not with buckets and leases.",
        "`false`",
    ),
    RuleKey(
        "sync",
        _word(SYNCS),
        "`leased`: processes hold counted parts of the limit, and ask Redis less often; see "
        "[leased limits](#leased-limits).",
        "`exact`",
    ),
    RuleKey(
        "reservations",
        _SWITCH,
        "Hits can be held before they are counted; see [reservations](#reservations).",
        "the file's",
    ),
    RuleKey(
        "max_reservation",
        _matching(PERCENT),
        "The part of the limit that one reservation may hold, as `50%`; a larger one is denied.",
        "`100%`",
    ),
    RuleKey(
        "max_reservation_ttl",
        _matching(DURATION),
        "The longest that one reservation may hold, if that is less than the service lets.",
        "`--max-reservation-ttl`",
    ),
    RuleKey(
        "on_expiry",
        _word(ON_EXPIRY),
        "What becomes of hits that nobody has settled in time: `release` them, or `charge` them.",
        "`release`",
    ),
    RuleKey(
        "failure_policy",
        _word(map(str, FailurePolicy)),
        "What answers when the store does not: `open`, `closed`, `error`, `local`.",
        "`--failure-policy`",
    ),
)
"""What may stand in `rate_limit`, and in each item of `rate_limits`."""

ROOT_KEYS: Final = tuple(each.name for each in AT_TOP)
LIMIT_KEYS: Final = dict.fromkeys(each.name for each in IN_LIMIT)
ANSWER_KEYS: Final = tuple(each.name for each in IN_ANSWER)


def descriptor_keys() -> Mapping[str, None]:
    """The keys of a descriptor, in order."""
    return dict.fromkeys(each.name for each in on_descriptor())


def key_locations() -> dict[str, str]:
    """Of every key where it stands."""
    return {
        key: location
        for location, keys in (
            ("inside answer", ANSWER_KEYS),
            ("inside rate_limit", LIMIT_KEYS),
            ("on a descriptor", descriptor_keys()),
            ("at the top of the file", ROOT_KEYS),
        )
        for key in keys
    }

"""The JSON Schema of rule files, held against `lint`: editors refuse nothing that is right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import yaml

from ratelimit_service.rules.json_schema import MODELINE, json_schema
from ratelimit_service.rules.schema import parse
from tests.rules.test_mistakes import MISTAKES
from tests.rules.test_odd import STRANGE_VALUES, TEMPLATES

TOP = Path(__file__).parents[2]
SHIPPED = [
    path
    for folder in ("rules", "deploy", "benchmarks", "examples")
    for path in sorted((TOP / folder).rglob("*.yaml"))
    if not path.name.endswith(".test.yaml") and "\ndomain: " in f"\n{path.read_text()}"
]

BEYOND_THE_SCHEMA = {
    # What YAML itself, or its use, is about.
    *("alias_bomb", "alias_of_itself", "merge_of_a_word", "merge_of_itself"),
    *("yaml", "yaml_tab", "yaml_unknown_alias", "duplicate_key", "second_document"),
    # What one key means beside another, or a descriptor beside another.
    *("anchor_of_a_sliding_window", "buckets_of_a_log", "burst_of_a_window", "burst_without_rate"),
    *("calendar_and_anchor", "calendar_multiplied", "calendar_of_a_bucket", "calendar_of_hours"),
    *("count_denied_of_a_bucket", "duplicate", "limits_on_one_counter"),
    *("max_wait_and_burst", "max_wait_of_a_token_bucket", "max_wait_too_short", "no_effect"),
    *("refill_of_a_leaky_bucket", "replaces_itself", "replaces_nobody", "share_threshold"),
    "replaces_a_limit_beside_it",
    *("share_threshold_of_a_key", "time_zone_without_calendar", "unlimited_with_requests"),
    *("unlimited_with_unit", "window_and_unit", "leases_too_many", "log_too_long", "queue"),
    *("soft_too_large", "soft_too_small", "week_start", "pool"),
    *("sync_of_a_log", "sync_of_a_pool", "sync_of_a_queue", "sync_of_a_small_bucket"),
    *("sync_of_a_stepped_bucket", "sync_of_short_parts"),
    # Words that are too many to list, and numbers that are too large only in some unit.
    *("time_zone", "window_too_long", "name", "metadata_is_infinite"),
}
"""The mistakes that `lint` tells and the schema does not."""


class _AsEditors(yaml.SafeLoader):
    """YAML as editors read it: a date is text."""


_AsEditors.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class NoYamlError(Exception):
    """A text that no editor hands to a schema."""


@cache
def validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(json.loads(json_schema()))


def refused(text: str) -> bool:
    """Whether the schema finds anything in a rule file."""
    try:
        document = yaml.load(text, Loader=_AsEditors)
        return not validator().is_valid(document)
    except Exception as error:  # PyYAML raises whatever Python does, at tags and odd numbers
        raise NoYamlError from error


def test_is_a_schema() -> None:
    """It is valid by its own draft, and explains every key."""
    schema = json.loads(json_schema())

    jsonschema.Draft7Validator.check_schema(schema)
    for mapping in (schema, *schema["definitions"].values()):
        assert all(each["description"] for each in mapping["properties"].values())


def test_is_published() -> None:
    """The wheel and the documents have it."""
    for published in (
        files("ratelimit_service.rules") / "rules.schema.json",
        TOP / "docs" / "rules.schema.json",
    ):
        assert published.read_text() == json_schema()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(TOP)))
def test_shipped_files(path: Path) -> None:
    """Every shipped rule file is valid, and its first line leads editors to the schema."""
    first = path.read_text().splitlines()[0]

    assert not refused(path.read_text())
    assert first.startswith(MODELINE)
    assert (path.parent / first.removeprefix(MODELINE)).samefile(TOP / "docs/rules.schema.json")


@pytest.mark.parametrize("path", sorted(MISTAKES.glob("*.yaml")), ids=lambda path: path.stem)
def test_mistakes(path: Path) -> None:
    """Every mistake is refused, but for those that are listed as beyond a schema."""
    try:
        is_refused = refused(path.read_text())
    except NoYamlError:
        is_refused = False

    assert is_refused == (path.stem not in BEYOND_THE_SCHEMA)


def odd_files() -> Iterator[str]:
    """Every place of the language with a part of the odd values; tags make Python's own types."""
    short = [value for value in STRANGE_VALUES if len(value) < 300 and not value.startswith("!")]
    for at, template in enumerate(TEMPLATES):
        for value in short[at % 3 :: 3]:
            yield template.replace("@", value)


def test_what_is_right_is_valid() -> None:
    """Whatever stands in a file: if lint finds no problem in it, nor does the schema."""
    tried = right = 0
    for text in odd_files():
        try:
            wrong = refused(text)
        except NoYamlError:
            continue
        tried += 1
        if not [each for each in parse("f", text.encode()).problems if not each.hint]:
            right += 1
            assert not wrong, text

    assert right > 100
    assert tried > 500

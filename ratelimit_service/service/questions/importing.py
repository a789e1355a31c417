"""Many overrides at once, as lists of them have it, made by one change.

* `import_overrides`: adds all of `overrides`, or none of them if one cannot be. Each is written as
  `Override.fields` says; one without `id` and `made` is new. With `check` nothing is changed. It
  answers how many would be or were `added`, `replaced`, `unchanged` or had `ended`, how many
  `more` there are by it, and how many are in force.

Whoever asks is who has made them. An override with the id of another one, or about the same, takes
its place. What must not live here: what one override needs to be made (`overrides`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from ratelimit_service.errors import OverrideError
from ratelimit_service.eventloop.slices import slowly
from ratelimit_service.model import (
    MAX_PATTERNS,
    Override,
    moment_of,
    read_override,
    time_text,
    too_many_patterns,
)
from ratelimit_service.model.override import FORMAT
from ratelimit_service.service.questions.changing import audit_line, change
from ratelimit_service.service.questions.overrides import (
    MOST_LISTED,
    ending_of,
    lost_by,
    new_override_id,
    notes_of,
)
from ratelimit_service.service.questions.question import About, Deciding, Question, QuestionError
from ratelimit_service.text.descriptors import override_text

__all__ = ["QUESTION"]

_AT_ONCE: Final = 5
"""So many are looked at between batches of requests: each is planned by the rules."""


class _Change(NamedTuple):
    """An override that is to be added, and those whose place it takes."""

    override: Override
    replaced: list[Override]


async def _import(deciding: Deciding, about: About) -> object:
    async with deciding.overrides.changing():
        return await _import_now(deciding, about)


async def _import_now(deciding: Deciding, about: About) -> object:
    said = about.get("overrides")
    if not isinstance(said, list) or not 0 < len(said) <= MOST_LISTED:
        raise QuestionError(f"overrides must be a list of 1 to {MOST_LISTED} overrides")
    ended = unchanged = 0
    changes: list[_Change] = []
    notes: list[str] = []
    seen: set[object] = set()
    async for fields in slowly(said, _AT_ONCE):
        override = await ending_of(deciding, _read(deciding, about, fields))
        if not seen.isdisjoint((override.id, override.identity)):
            raise QuestionError(f"{_named(override)}: another one here is about the same")
        seen.update((override.id, override.identity))
        if not override.holds(deciding.overrides.clock()):
            ended += 1
            continue
        try:
            noted = await notes_of(deciding, override)
        except QuestionError as error:
            raise QuestionError(f"{_named(override)}: {error}", error.code) from error
        replaced = _replaced(deciding, override)
        if [replace(each, who=override.who) for each in replaced] == [override]:
            unchanged += 1
            continue
        noted += lost_by(override, replaced)
        notes += [f"{_named(override)}: {note}" for note in noted]
        changes.append(_Change(override, replaced))
    gone = {each.id: each for change in changes for each in change.replaced}
    patterns = sum(not change.override.exact for change in changes)
    patterns -= sum(not each.exact for each in gone.values())
    if patterns > 0 and deciding.overrides.patterns + patterns > MAX_PATTERNS:
        raise too_many_patterns()
    told: dict[str, object] = {
        "added": len(changes) - len(gone),
        "replaced": len(gone),
        "unchanged": unchanged,
        "ended": ended,
        "more": {"overrides": len(changes) - len(gone), "patterns": patterns},
        "in_force": {
            "overrides": deciding.service.overrides.active,
            "patterns": deciding.overrides.patterns,
        },
        "notes": notes,
    }
    if about.get("check") or not changes:
        return told
    audit = [audit_line(deciding, about, "import", old, [new]) for new, old in changes]
    await change(deciding, [change.override for change in changes], list(gone), *audit)
    return {**told, "audit": audit}


def _read(deciding: Deciding, about: About, fields: object) -> Override:
    """An override as it is written in a list. Raises OverrideError and QuestionError."""
    if not isinstance(fields, Mapping):
        raise QuestionError("each of the overrides must be a JSON object")
    now_us = deciding.overrides.clock()
    same = deciding.overrides.find(str(fields.get("id")))
    made_us = now_us if same is None else same.made_us
    whole = {"v": FORMAT, "id": new_override_id(), "made": time_text(made_us), **fields}
    try:
        made_us = min(moment_of(whole["made"]), now_us)
        said = {"made": time_text(made_us), "who": about.get("who", "")}
        return read_override({**whole, **said})
    except OverrideError as error:
        raise QuestionError(f"an override of {fields.get('entries')}: {error}") from error


def _replaced(deciding: Deciding, override: Override) -> list[Override]:
    """The overrides in force that it replaces."""
    alike = deciding.overrides.alike(override.domain, override.entries)
    found = {each.id: each for each in alike if each.identity == override.identity}
    same = deciding.overrides.find(override.id)
    if same is not None:
        found[same.id] = same
    return list(found.values())


def _named(override: Override) -> str:
    return override_text(replace(override, who="", reason="").fields())


QUESTION: Final = Question("import_overrides", _import)

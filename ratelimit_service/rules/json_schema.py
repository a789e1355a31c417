"""The rule language as a JSON Schema, for editors: made of what `language` declares.

It refuses nothing that `lint` finds no problem in. What a key means beside another one it does not
say: that is `lint`'s business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from ratelimit_service.rules.language import (
    AT_TOP,
    IN_ANSWER,
    IN_LIMIT,
    REQUIRED,
    RuleKey,
    on_descriptor,
)

__all__ = ["MODELINE", "json_schema"]

MODELINE = "# yaml-language-server: $schema="
"""The line of a YAML file that tells editors where its schema is; a URL or a path follows."""

_DRAFT = "http://json-schema.org/draft-07/schema#"
"""The draft that all editors know."""

_UNLIMITED = {"properties": {"unlimited": {"const": True}}, "required": ["unlimited"]}
_COUNTED = {
    "required": ["requests_per_unit"],
    "anyOf": [{"required": ["unit"]}, {"required": ["window"]}],
}


def json_schema() -> str:
    """The schema as text, always the same for the same language."""
    limit = _mapping(IN_LIMIT)
    del limit["required"]
    schema = {
        "$schema": _DRAFT,
        "title": "Rules of ratelimit",
        **_mapping(AT_TOP),
        "definitions": {
            "answer": {**_mapping(IN_ANSWER), "type": ["object", "null"]},
            "descriptor": _mapping(on_descriptor()),
            "limit": {**limit, "type": ["object", "null"], "if": _UNLIMITED, "else": _COUNTED},
        },
    }
    return json.dumps(schema, indent=2) + "\n"


def _mapping(keys: Iterable[RuleKey]) -> dict[str, object]:
    keys = tuple(keys)
    return {
        "type": "object",
        "properties": {
            each.name: {"description": _description(each), **each.shape} for each in keys
        },
        "required": [each.name for each in keys if each.required],
        "additionalProperties": False,
    }


def _description(key: RuleKey) -> str:
    """A key's sentence, without links, and what holds without it."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", key.help)
    return text if key.default in {"none", REQUIRED} else f"{text} Default: {key.default}."

"""What one scalar of YAML 1.1 says: its text, a number, a switch.

What must not live here: problems, which are for who knows the scalar's key (`fields`).
"""

from __future__ import annotations

import yaml

__all__ = ["MAX_DIGITS", "NULL", "NUMBERS", "STR", "decimals", "number", "raw", "switch"]

MAX_DIGITS = 64
"""The longest text that is read as a number: reading one takes the square of its length."""

_TAG = "tag:yaml.org,2002:"
NULL = f"{_TAG}null"
STR = f"{_TAG}str"
_BOOL = f"{_TAG}bool"
_INT = f"{_TAG}int"
_FLOAT = f"{_TAG}float"
NUMBERS = (_INT, _FLOAT)
_TRUE = {"yes", "true", "on"}
_FALSE = {"no", "false", "off"}

_CONSTRUCTOR = yaml.constructor.SafeConstructor()
"""Reads numbers, one at a time; to make one takes longer than to read a rule."""


def raw(node: yaml.Node) -> str:
    """A scalar as it stands in the file; empty if it is no scalar."""
    if not isinstance(node, yaml.ScalarNode):
        return ""
    text: str = node.value
    return text


def number(node: yaml.Node) -> int | float | None:
    """A number as YAML 1.1 reads it; None if it is none, whatever its tag says."""
    if node.tag not in NUMBERS:
        return None
    if not isinstance(node, yaml.ScalarNode) or len(node.value) > MAX_DIGITS:
        return None
    try:
        if node.tag == _INT:
            return int(_CONSTRUCTOR.construct_yaml_int(node))
        if node.tag == _FLOAT:
            return float(_CONSTRUCTOR.construct_yaml_float(node))
    except (ValueError, IndexError):  # 0x_ looks like a number; a tag may stand before anything
        return None
    return None


def decimals(node: yaml.Node) -> list[int]:
    """What to write of a number that is not read as it looks, in digits; nothing if it is.

    That is the number which YAML 1.1 reads, and the other one that an octal looks like.
    """
    read = number(node)
    plain = raw(node).removeprefix("+")
    if read is None or "." in plain or (plain.lstrip("-").isdecimal() and int(plain) == read):
        return []
    return [int(read), int(plain)] if plain.lstrip("-").isdecimal() else [int(read)]


def switch(node: yaml.Node) -> bool | None:
    """A boolean as YAML 1.1 reads it; None if it is none, whatever its tag says."""
    word = raw(node).lower()
    if node.tag != _BOOL or word not in _TRUE | _FALSE:
        return None
    return word in _TRUE

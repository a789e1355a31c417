"""What is wrong where YAML or JSON cannot be read is said in words of ours."""

from __future__ import annotations

import json

import pytest
import yaml

from ratelimit_service.text.json_slips import json_slip
from ratelimit_service.text.yaml_slips import slip

LEVEL = "lines of one level begin at the same column"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [,", "a value must stand here"),
        ("a:\n- b\nc", "behind a key must stand a colon and a space"),
        ("- a\nb: 1", f"a - must stand here: {LEVEL}"),
        ("a: 1\n- b", f"a key must stand here: {LEVEL}"),
        ("[a: 1 b: 2]", "a comma must stand here, or the ] of this list"),
        ("{a: [1] b}", "a comma must stand here, or the } of this mapping"),
        ("a\n--- b: c", f"no key may stand here: a line has one, and {LEVEL}"),
        ("a: b: c", f"no key may stand here: a line has one, and {LEVEL}"),
        ("a: - b", "a list must begin on a line of its own"),
        ("'a", "what begins here does not end: the file ends before it"),
        ("'a\n---\n", "a line --- or ... ends the document before it"),
        ("a: %b", "no value may begin with this character"),
        ("a: *b", "no anchor (&) has this name: a text that begins with * must stand in quotes"),
        ('a: "\\c"', "this is no escape: write two backslashes for one"),
        ('a: "\\xyz"', "behind \\x, \\u and \\U must stand hexadecimal digits"),
        ("a: & b", "a name of letters, digits, - and _ must stand here"),
        ("a: | b\n", "only a comment or the end of the line may stand here"),
        ("[a]\n[b]", f"nothing may stand here: {LEVEL}"),
    ],
)
def test_yaml(text: str, words: str) -> None:
    """Whatever YAML finds is said in words that people know who write it now and then."""
    with pytest.raises(yaml.MarkedYAMLError) as raised:
        list(yaml.compose_all(text, yaml.CSafeLoader))

    assert words in slip(raised.value, text)[1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"a":\n1,}', "line 2, column 3: a name in double quotes must stand here"),
        (b'"\xff"', "it has text that is no UTF-8"),
        (b"[" * 100_000, "it is nested too deep"),
        (b"9" * 5_000, "a number has too many digits"),
    ],
)
def test_json(text: bytes, words: str) -> None:
    """What is wrong is said with its line and its column, where it has one place."""
    with pytest.raises((ValueError, RecursionError)) as raised:
        json.loads(text)

    assert isinstance(raised.value, ValueError | RecursionError)
    assert json_slip(raised.value) == words

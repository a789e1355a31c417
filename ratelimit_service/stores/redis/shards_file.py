"""The file that lists a ring's shards: what a store URL has no room for.

Every problem is told with its line. What must not live here: what a shard's own URL says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import yaml

from ratelimit_service.errors import SettingsError
from ratelimit_service.files.whole_file import read_whole
from ratelimit_service.stores.redis.address import Cluster, Member, Ring
from ratelimit_service.text.display import reason
from ratelimit_service.text.yaml_slips import lines_of, slip

__all__ = ["read_shards"]

_FIELDS = ("name", "store", "weight")
_MOST_WEIGHT = 100


def read_shards(path: Path, parse: Callable[[str], Ring | Cluster]) -> Ring:
    """The ring that the file describes; `parse` reads a shard's store URL.

    Raises SettingsError with all problems of the file, a line each.
    """
    text = ""
    try:
        text = read_whole(path).decode()
        node = yaml.compose(text, yaml.CSafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the shards file {path} cannot be read: {reason(error)}") from error
    except yaml.MarkedYAMLError as error:
        at, what = slip(error, text)
        line = len(lines_of(text[:at]))
        raise SettingsError(f"{path}:{line}: this is no YAML: {what}") from error
    except yaml.reader.ReaderError as error:
        what = f"the character {error.character:#x} cannot stand in it"
        raise SettingsError(f"{path} is no YAML: {what}") from error
    reader = _Reader(path, parse)
    members = list(reader.members(node))
    if not reader.problems and not members:
        reader.problem(node, "lists no shards: write `shards:` and under it name and store of each")
    if reader.problems:
        raise SettingsError("\n".join(reader.problems))
    return Ring(tuple(members))


class _Reader:
    def __init__(self, path: Path, parse: Callable[[str], Ring | Cluster]) -> None:
        self._path, self._parse = path, parse
        self._names: set[str] = set()
        self.problems: list[str] = []

    def problem(self, node: yaml.Node | None, text: str) -> None:
        line = node.start_mark.line + 1 if node else 1
        self.problems.append(f"{self._path}:{line}: {text}")

    def members(self, node: yaml.Node | None) -> Iterator[Member]:
        for key, value in self._fields(node, ("shards",), "the file"):
            if key != "shards":
                continue
            if not isinstance(value, yaml.SequenceNode):
                self.problem(value, "shards is no list")
                continue
            for each in value.value:
                member = self._member(each)
                if member is not None:
                    yield member

    def _member(self, node: yaml.Node) -> Member | None:
        before = len(self.problems)
        fields = dict(self._fields(node, _FIELDS, "a shard"))
        texts = {name: self._text(name, value) for name, value in fields.items()}
        weight = texts.get("weight", "1")
        if not (weight.isascii() and weight.isdigit() and 1 <= int(weight) <= _MOST_WEIGHT):
            self.problem(fields["weight"], f"weight {weight!r} is no number from 1 to 100")
        if not texts.get("store") and len(self.problems) == before:
            self.problem(node, "a shard without store: write its URL, as in redis://host:6379/0")
        if len(self.problems) > before:
            return None
        try:
            ring = self._parse(texts["store"])
        except SettingsError as error:
            self.problem(fields["store"], str(error))
            return None
        if isinstance(ring, Cluster) or len(ring.members) != 1:
            self.problem(fields["store"], "a shard is one server: list the others as shards too")
            return None
        member = ring.members[0]
        name = texts.get("name") or member.name
        if name in self._names:
            self.problem(node, f"the name {name!r} is taken: give every shard a name of its own")
            return None
        self._names.add(name)
        return replace(member, name=name, weight=int(weight))

    def _fields(
        self, node: yaml.Node | None, known: tuple[str, ...], whose: str
    ) -> Iterator[tuple[str, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            self.problem(node, f"{whose} is no mapping: allowed are {', '.join(known)}")
            return
        seen = set()
        for key, value in node.value:
            if key.value not in known:
                allowed = ", ".join(known)
                self.problem(key, f"{whose} has no field {key.value!r}: allowed are {allowed}")
            elif key.value in seen:
                self.problem(key, f"{key.value} is given twice")
            else:
                seen.add(key.value)
                yield key.value, value

    def _text(self, name: str, node: yaml.Node) -> str:
        if isinstance(node, yaml.ScalarNode):
            return str(node.value)
        self.problem(node, f"{name} is no text")
        return "1" if name == "weight" else ""

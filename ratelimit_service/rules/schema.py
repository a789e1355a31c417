"""The rule language: from a file's bytes to nodes, or to everything that is wrong with them.

Works on YAML's nodes rather than on values, since these know their line and their source
text. Merging files and looking things up live elsewhere (`load`, `match`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Never

import yaml

from ratelimit_service.algorithms import ALGORITHMS
from ratelimit_service.model import MAX_ADDEND, FailurePolicy, Limit, Unit
from ratelimit_service.observer import Tallies
from ratelimit_service.rules.problem import Problem, did_you_mean
from ratelimit_service.rules.tree import Level, Node, Pattern, Rule, Source, path_text

__all__ = ["RuleFile", "parse"]

_MAX_DEPTH = 100
"""The deepest nesting of YAML; PyYAML's composer overflows the C stack somewhere beyond."""

_MAX_NODES = 2_000_000
"""The most YAML nodes walked in a file, so that nested aliases cannot multiply for ever."""

_MAX_WINDOW_US = 2**53

_ROOT_KEYS = ("domain", "descriptors")
_DESCRIPTOR_KEYS = (
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "share_threshold",
    "detailed_metric",
    "value_to_metric",
    "metadata",
)
_LIMIT_KEYS = (
    "unit",
    "unit_multiplier",
    "requests_per_unit",
    "unlimited",
    "name",
    "replaces",
    "algorithm",
    "count_denied",
    "failure_policy",
)
_REPLACES_KEYS = ("name",)
_PLACES = {
    key: place
    for place, keys in (
        ("inside rate_limit", _LIMIT_KEYS),
        ("on a descriptor", _DESCRIPTOR_KEYS),
        ("at the top of the file", _ROOT_KEYS),
    )
    for key in keys
}
_UNITS = {unit.name.lower(): unit for unit in Unit}
_UNSAFE_IN_NAME = re.compile(r'[^\x20-\x7e]|["\\]')
_DOMAIN_LINE = re.compile(rb"^domain[ \t]*:[ \t]*[\"']?([^\"'#\r\n]+)", re.MULTILINE)

Path = tuple[tuple[str, str], ...]
TalliesOf = Callable[[str, str], Tallies]


@dataclass(frozen=True, slots=True)
class RuleFile:
    """What one file says. If it is bad, `nodes` are not to be used and `domain` is a guess."""

    name: str
    domain: str
    nodes: tuple[Node, ...]
    problems: tuple[Problem, ...]

    @property
    def bad(self) -> bool:
        """Whether envoyproxy/ratelimit would refuse the file as well."""
        return not all(problem.tolerated for problem in self.problems)


def parse(
    name: str, data: bytes, tallies: TalliesOf = lambda _domain, _path: Tallies()
) -> RuleFile:
    """Reads one rule file; never raises for what is in it.

    `tallies` gives the tallies of a rule by domain and path.
    """
    reader = _Reader(name, tallies)
    try:
        return reader.file(data)
    except _Stop:
        guess = _DOMAIN_LINE.search(data)
        domain = guess[1].decode("utf-8", "replace").strip() if guess else ""
        return RuleFile(name, domain, (), tuple(reader.problems))


class _Stop(Exception):  # noqa: N818 -- no error of its own: the problem is noted already
    """Nothing more can be read in this file."""


class _Value(NamedTuple):
    """A key of a mapping with its value."""

    key: yaml.ScalarNode
    node: yaml.Node


class _Reader:
    """Reads one file and collects its problems."""

    def __init__(self, name: str, tallies: TalliesOf) -> None:
        self.problems: list[Problem] = []
        self._name = name
        self._tallies = tallies
        self._domain = ""
        self._visited = 0

    def file(self, data: bytes) -> RuleFile:
        root = self._compose(data)
        values = self._mapping(root, (), _ROOT_KEYS)
        if values is None:
            raise _Stop
        if "domain" not in values:
            self._report(root, (), "no_domain", "domain is missing: name what callers ask for")
        else:
            self._domain = self._text(values["domain"], ())
            if not self._domain:
                self._report(root, (), "no_domain", "domain is empty: name what callers ask for")
        nodes = self._descriptors(values.get("descriptors"), ())
        return RuleFile(self._name, self._domain, nodes, tuple(self.problems))

    # What a file is made of

    def _compose(self, data: bytes) -> yaml.Node:
        """The first document's root node. Raises _Stop if the file is no YAML."""
        try:
            text = data.decode("utf-8-sig")
            self._check_depth(text)
            loader = yaml.CSafeLoader(text)
            root = loader.get_node() if loader.check_node() else None
            if root is None:
                self._stop(None, "no_domain", "the file is empty: it needs a domain")
            second = loader.get_node() if loader.check_node() else None
            if second is not None:
                self._report(
                    second,
                    (),
                    "second_document",
                    "only the first document of a file is read: put this one into its own file",
                    tolerated=True,
                )
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            column = error.start - data.rfind(b"\n", 0, error.start)
            self._stop(Source(self._name, line, column), "yaml", "the file is not UTF-8")
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            source = Source(self._name, mark.line + 1, mark.column + 1) if mark else None
            self._stop(source, "yaml", f"this is no YAML: {error.problem or error.context}")
        except yaml.YAMLError as error:
            self._stop(None, "yaml", f"this is no YAML: {' '.join(str(error).split())}")
        return root

    def _check_depth(self, text: str) -> None:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > _MAX_DEPTH:
                    message = f"nested more than {_MAX_DEPTH} deep"
                    self._stop(self._source(event), "too_deep", message)
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1

    def _descriptors(self, value: _Value | None, path: Path) -> tuple[Node, ...]:
        if value is None:
            return ()
        seen: dict[tuple[str, str], Node] = {}
        for item in self._items(value, path):
            node = self._descriptor(item, path)
            if node is None:
                continue
            other = seen.setdefault((node.key, node.value), node)
            if other is not node:
                self._report(
                    item,
                    (*path, (node.key, node.value)),
                    "duplicate",
                    f"the same key and value stand at {other.source}: merge the two",
                )
        return tuple(seen.values())

    def _descriptor(self, item: yaml.Node, path: Path) -> Node | None:
        if len(path) >= _MAX_DEPTH:
            # An alias that holds itself is not deep in the text, but endless in meaning.
            self._stop(self._source(item), "too_deep", f"nested more than {_MAX_DEPTH} deep")
        here = (*path, self._entry(item))
        values = self._mapping(item, here, _DESCRIPTOR_KEYS)
        if values is None:
            return None
        key = self._text(values["key"], here) if "key" in values else ""
        value = self._text(values["value"], here) if "value" in values else ""
        here = (*path, (key, value))
        if not key:
            self._report(
                item, path, "no_key", "key is missing or empty: every descriptor needs one"
            )
        pattern = Pattern.of(value) if "*" in value else None
        share_threshold = self._switch(values.get("share_threshold"), here)
        if share_threshold and not pattern:
            self._report(
                values["share_threshold"].key,
                here,
                "share_threshold",
                "share_threshold needs a `*` in value: without one there is nothing to share",
            )
        flags = {
            name: self._switch(values.get(name), here)
            for name in ("shadow_mode", "quota_mode", "detailed_metric")
        }
        metadata = self._metadata(values.get("metadata"), here)
        rule = None
        if "rate_limit" in values and not _is_null(values["rate_limit"].node):
            rule = self._rule(values["rate_limit"], here, flags, metadata)
        else:
            self._report_idle(values, here)
        below = self._descriptors(values.get("descriptors"), here)
        if not key:
            return None
        return Node(
            key,
            value,
            pattern,
            rule,
            Level.of(below) if below else None,
            share_threshold,
            self._switch(values.get("value_to_metric"), here),
            self._source(item),
        )

    def _report_idle(self, values: dict[str, _Value], path: Path) -> None:
        for name in ("shadow_mode", "quota_mode", "detailed_metric", "metadata"):
            if name in values:
                self._report(
                    values[name].key,
                    path,
                    "no_effect",
                    f"{name} does nothing on a descriptor without rate_limit: put it beside one",
                    tolerated=True,
                )

    def _rule(
        self,
        value: _Value,
        path: Path,
        flags: dict[str, bool],
        metadata: dict[str, object] | None,
    ) -> Rule | None:
        values = self._mapping(value.node, path, _LIMIT_KEYS)
        if values is None:
            return None
        name = self._text(values["name"], path) if "name" in values else ""
        shown = _UNSAFE_IN_NAME.sub("_", name)
        if shown != name:
            self._report(
                values["name"].node,
                path,
                "name",
                "name is shown in headers: use printable ASCII without quotes and backslashes; "
                f"callers see {shown!r}",
                tolerated=True,
            )
        text = path_text(path)
        return Rule(
            domain=self._domain,
            path=text,
            limit=self._limit(value, values, path, shown),
            name=name,
            replaces=self._replaces(values.get("replaces"), path, name),
            algorithm=self._one_of(values.get("algorithm"), path, ALGORITHMS, "fixed_window"),
            count_denied=self._switch(values.get("count_denied"), path),
            failure_policy=self._failure_policy(values.get("failure_policy"), path),
            metadata=metadata,
            source=self._source(value.key),
            tallies=self._tallies(self._domain, text),
            **flags,
        )

    def _limit(
        self, value: _Value, values: dict[str, _Value], path: Path, name: str
    ) -> Limit | None:
        if self._switch(values.get("unlimited"), path):
            self._check_unlimited(values, path)
            return None
        unit = Unit.SECOND
        if "unit" in values and not _is_null(values["unit"].node):
            unit = _UNITS[self._one_of(values["unit"], path, _UNITS, "second")]
        else:
            self._report(value.key, path, "unit", f"unit is missing: allowed are {_listed(_UNITS)}")
        requests = 0
        if "requests_per_unit" in values and not _is_null(values["requests_per_unit"].node):
            requests = self._number(values["requests_per_unit"], path, 0)
        else:
            self._report(
                value.key,
                path,
                "requests_per_unit",
                "requests_per_unit is missing, which denies everything: write a number from 0 to "
                f"{MAX_ADDEND}, or unlimited: true",
                tolerated=True,
            )
        multiplier = 1
        if "unit_multiplier" in values:
            multiplier = self._number(values["unit_multiplier"], path, 1)
        limit = Limit(requests, unit, multiplier, name)
        if limit.window_us >= _MAX_WINDOW_US:
            self._report(
                values["unit_multiplier"].node,
                path,
                "unit_multiplier",
                f"a window of {multiplier} {unit.name.lower()}s is too long: at most 285 years",
            )
        return limit

    def _check_unlimited(self, values: dict[str, _Value], path: Path) -> None:
        for key in ("unit", "requests_per_unit", "unit_multiplier", "algorithm", "count_denied"):
            if key not in values:
                continue
            misspelt = key == "unit" and self._raw(values[key].node).lower() not in _UNITS
            self._report(
                values[key].key,
                path,
                "unlimited",
                f"{key} and unlimited: true exclude each other: remove one",
                tolerated=misspelt or key == "requests_per_unit",
            )

    def _replaces(self, value: _Value | None, path: Path, own: str) -> frozenset[str]:
        if value is None:
            return frozenset()
        names = set()
        for item in self._items(value, path):
            values = self._mapping(item, path, _REPLACES_KEYS)
            if values is None:
                continue
            name = self._text(values["name"], path) if "name" in values else ""
            if not name:
                self._report(item, path, "replaces", "write each replaced rule as - name: …")
            elif name == own:
                self._report(item, path, "replaces", f"{name!r} cannot replace itself")
            else:
                names.add(name)
        return frozenset(names)

    def _failure_policy(self, value: _Value | None, path: Path) -> FailurePolicy | None:
        if value is None:
            return None
        if self._raw(value.node) == "local":
            self._report(
                value.node,
                path,
                "failure_policy",
                f"failure_policy local comes later: allowed are {_listed(FailurePolicy)}",
            )
            return None
        return FailurePolicy(self._one_of(value, path, list(map(str, FailurePolicy)), "open"))

    # What values are made of

    def _entry(self, item: yaml.Node) -> tuple[str, str]:
        """Key and value of a descriptor, as far as they can be told before it is checked."""
        found = {"key": "", "value": ""}
        if isinstance(item, yaml.MappingNode):
            found |= {self._raw(key): self._raw(value) for key, value in item.value}
        return found["key"], found["value"]

    def _mapping(
        self, node: yaml.Node, path: Path, allowed: Sequence[str]
    ) -> dict[str, _Value] | None:
        """The keys that may stand here, with their values; None if this is no mapping.

        Of a key that stands here twice the last counts, as in the reference.
        """
        if not isinstance(node, yaml.MappingNode):
            self._report(node, path, "type", f"this must be a mapping of {_listed(allowed)}")
            return None
        values: dict[str, _Value] = {}
        for value, merged in self._pairs(node, 0):
            name = self._raw(value.key)
            if name not in allowed:
                self._report_key(value.key, path, name, allowed)
            elif name not in values:
                values[name] = value
            elif not merged:
                self._report(
                    value.key,
                    path,
                    "duplicate_key",
                    f"{name} stands here twice: the last one counts",
                    tolerated=True,
                )
                values[name] = value
        return values

    def _pairs(self, node: yaml.MappingNode, depth: int) -> Iterator[tuple[_Value, bool]]:
        """Own pairs first, then those of `<<`, each with whether it is merged in."""
        self._count(node)
        merges: list[yaml.Node] = []
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                merges += value.value if isinstance(value, yaml.SequenceNode) else [value]
            else:
                yield _Value(key, value), depth > 0
        for merge in merges:
            if not isinstance(merge, yaml.MappingNode) or depth > _MAX_DEPTH:
                self._stop(self._source(merge), "yaml", "<< must name a mapping other than itself")
            yield from self._pairs(merge, depth + 1)

    def _report_key(self, key: yaml.Node, path: Path, name: str, allowed: Sequence[str]) -> None:
        if name in _PLACES:
            message = f"{name} does nothing here: it stands {_PLACES[name]}"
            self._report(key, path, "misplaced_key", message, tolerated=True)
        else:
            hint = did_you_mean(name, allowed)
            message = f"{name!r} is no key: allowed are {_listed(allowed)}{hint}"
            self._report(key, path, "unknown_key", message)

    def _items(self, value: _Value, path: Path) -> list[yaml.Node]:
        if _is_null(value.node):
            return []
        if not isinstance(value.node, yaml.SequenceNode):
            self._report(value.node, path, "type", f"{self._raw(value.key)} must be a list")
            return []
        self._count(value.node)
        items: list[yaml.Node] = value.node.value
        return items

    def _raw(self, node: yaml.Node) -> str:
        """A scalar as it stands in the file, whatever YAML takes it for; "" if it is none."""
        return str(node.value) if isinstance(node, yaml.ScalarNode) else ""

    def _text(self, value: _Value, path: Path) -> str:
        if not isinstance(value.node, yaml.ScalarNode):
            self._report(value.node, path, "type", f"{self._raw(value.key)} must be text")
            return ""
        return "" if _is_null(value.node) else self._raw(value.node)

    def _switch(self, value: _Value | None, path: Path) -> bool:
        if value is None or _is_null(value.node):
            return False
        if value.node.tag != "tag:yaml.org,2002:bool":
            self._report(
                value.node,
                path,
                "type",
                f"{self._raw(value.key)} must be true or false, without quotes",
            )
            return False
        return self._raw(value.node).lower() in {"yes", "true", "on"}

    def _number(self, value: _Value, path: Path, least: int) -> int:
        number = None
        if isinstance(value.node, yaml.ScalarNode) and value.node.tag == "tag:yaml.org,2002:int":
            number = int(yaml.SafeLoader("").construct_yaml_int(value.node))
        if number is None or not least <= number <= MAX_ADDEND:
            name = self._raw(value.key)
            self._report(
                value.node,
                path,
                "number",
                f"{name} must be a whole number from {least} to {MAX_ADDEND}, without quotes",
            )
            return least
        return number

    def _one_of(
        self, value: _Value | None, path: Path, allowed: Collection[str], default: str
    ) -> str:
        """One of the allowed words, in lower case; the default if there is none that is."""
        if value is None:
            return default
        word = self._raw(value.node).lower()
        if word in allowed:
            return word
        name = self._raw(value.key)
        hint = did_you_mean(word, allowed)
        self._report(
            value.node,
            path,
            name,
            f"{name} {word!r} is unknown: allowed are {_listed(allowed)}{hint}",
        )
        return default

    def _metadata(self, value: _Value | None, path: Path) -> dict[str, object] | None:
        if value is None or _is_null(value.node):
            return None
        if not isinstance(value.node, yaml.MappingNode):
            self._report(value.node, path, "type", "metadata must be a mapping")
            return None
        metadata = self._plain(value.node, path, 0)
        return metadata if isinstance(metadata, dict) else None

    def _plain(self, node: yaml.Node, path: Path, depth: int) -> object:
        """A value of metadata as JSON has it."""
        self._count(node)
        if depth > _MAX_DEPTH:
            self._stop(self._source(node), "too_deep", f"nested more than {_MAX_DEPTH} deep")
        if isinstance(node, yaml.MappingNode):
            values: dict[str, object] = {}
            for (key, value), merged in self._pairs(node, 0):
                name = self._raw(key)
                if not merged or name not in values:
                    values[name] = self._plain(value, path, depth + 1)
            return values
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(item, path, depth + 1) for item in node.value]
        kind = node.tag.rpartition(":")[2]
        if kind == "null":
            return None
        if kind == "bool":
            return self._raw(node).lower() in {"yes", "true", "on"}
        if kind in {"int", "float"} and isinstance(node, yaml.ScalarNode):
            loader = yaml.SafeLoader("")
            construct = loader.construct_yaml_int if kind == "int" else loader.construct_yaml_float
            number = float(construct(node))
            if math.isfinite(number):
                return number
            self._report(node, path, "type", "numbers in metadata must be finite")
        return self._raw(node)

    # Problems

    def _count(self, node: yaml.Node) -> None:
        self._visited += len(node.value) + 1
        if self._visited > _MAX_NODES:
            message = f"more than {_MAX_NODES} values: aliases multiply here"
            self._stop(self._source(node), "too_large", message)

    def _source(self, node: yaml.Node | yaml.Event) -> Source:
        mark = node.start_mark
        return Source(self._name, mark.line + 1, mark.column + 1) if mark else Source(self._name)

    def _report(
        self, node: yaml.Node, path: Path, kind: str, message: str, *, tolerated: bool = False
    ) -> None:
        place = path_text([entry for entry in path if entry[0]])
        self.problems.append(Problem(self._source(node), place, message, kind, tolerated))

    def _stop(self, source: Source | None, kind: str, message: str) -> Never:
        self.problems.append(Problem(source or Source(self._name), "", message, kind))
        raise _Stop


def _is_null(node: yaml.Node) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:null")


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)

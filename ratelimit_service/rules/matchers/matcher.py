"""What a matcher is: how a descriptor says which values it takes, where that is more than one.

Reading, the walk, counting, metrics, `explain`, `/rlconfig`, hints and the way to other processes
take all that they need from here; none of them knows one matcher by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Self, TypeVar

from ratelimit_service.containers.spread import SpreadList, parts_of
from ratelimit_service.rules.paths import matcher_name
from ratelimit_service.rules.problem import quoted

if TYPE_CHECKING:  # workers have matchers, but read no YAML
    import yaml

    from ratelimit_service.rules.fields import Fields

__all__ = ["ONE_OR_MORE", "ONE_TEXT", "Index", "Matcher", "OneByOne", "read_list"]


ONE_TEXT: Final[Mapping[str, object]] = {
    "type": ["string", "number", "boolean"],
    "minLength": 1,
}
"""A text, as a JSON Schema."""

ONE_OR_MORE: Final[Mapping[str, object]] = {
    "anyOf": [
        ONE_TEXT,
        {
            "type": "array",
            "items": ONE_TEXT,
            "minItems": 1,
        },
    ]
}
"""A text or a list of texts, as a JSON Schema."""


_T = TypeVar("_T")


def read_list(
    fields: Fields, key: str, item: Callable[[str, yaml.Node], _T], empty: str
) -> tuple[_T, ...]:
    """The items of a key's list, each once; one text alone is a list, too.

    `item` reads one, and raises ValueError if it cannot. Raises ValueError with `empty` if there is
    none.
    """
    items: dict[_T, None] = {}
    for text, node in fields.one_or_more(key):
        try:
            each = item(text, node)
        except ValueError as error:
            fields.report_at(node, key, str(error))
            continue
        if each in items:
            shown = quoted(each) if isinstance(each, str) else each
            fields.report_at(node, key, f"{shown} stands in this list twice")
        items[each] = None
    if not items:
        raise ValueError(empty)
    return tuple(items)


class Index(ABC):
    """Finds out which of many matchers of one kind take a value. Each has a position."""

    @abstractmethod
    def add(self, matcher: Matcher, position: int) -> None:
        """Adds the next matcher; positions only grow."""

    def completing(self) -> Iterator[None]:
        """Does what is left to do when all have been added, a step at a time."""
        return iter(())

    def parts(self) -> Iterator[object]:
        """The parts of what is large, which takes long to drop at once."""
        return iter(())

    @abstractmethod
    def first(self, value: str) -> int:
        """The position of the one that a value goes to; -1 if none takes it."""

    @abstractmethod
    def all(self, value: str) -> Iterable[int]:
        """The positions of all that take a value, the one that it goes to first."""


class OneByOne(Index):
    """Asks one matcher after the other: for kinds of which a level has few."""

    def __init__(self) -> None:
        self._matchers: SpreadList[tuple[int, Matcher]] = SpreadList()

    def add(self, matcher: Matcher, position: int) -> None:
        """Adds the next matcher."""
        self._matchers.append((position, matcher))

    def parts(self) -> Iterator[object]:
        """Those of the list."""
        yield from parts_of(self._matchers)

    def first(self, value: str) -> int:
        """The first declared one that takes it."""
        for position, matcher in self._matchers:
            if matcher.matches(value):
                return position
        return -1

    def all(self, value: str) -> Iterable[int]:
        """All that take it, as declared."""
        return [position for position, matcher in self._matchers if matcher.matches(value)]


class Matcher(ABC):
    """The values that one descriptor takes. It never changes, and can be pickled."""

    __slots__ = ()

    key: ClassVar[str]
    """The key of a descriptor that it is written under."""
    help: ClassVar[str]
    """The sentence that explains the key, in docs/rules.md and to editors."""
    shape: ClassVar[Mapping[str, object]] = {"type": ["string", "number", "boolean", "null"]}
    """What may stand under the key, as a JSON Schema."""
    default: ClassVar[str] = "none"
    """What holds without the key."""
    noun: ClassVar[str]
    """What `explain` calls it: "the … matches"."""
    index: ClassVar[type[Index]] = OneByOne
    """What finds those that take a value among the many of a level."""
    most: ClassVar[int] = 0
    """The most that one level may have of one key, 0 for any number."""
    covers_by_text: ClassVar[bool] = False
    """Whether one that covers another always takes the other's `covered_text`, as a value."""
    beaten: ClassVar[str] = "was declared later"
    """Why one that takes a value stands behind another of its precedence, for `explain`."""
    text: str
    """What it takes, as files write it. Two that take other values have other texts."""

    @property
    def parts(self) -> Sequence[tuple[object, ...]]:
        """The parts of what it is made of, if that is so much that it takes long to drop at once.

        So it goes to other processes, too (`made_of`).
        """
        return ()

    @classmethod
    def made_of(cls, parts: Sequence[tuple[object, ...]]) -> Matcher:
        """The matcher that has these parts."""
        raise NotImplementedError(f"{cls.__name__} has no parts, and was given {len(parts)}")

    @classmethod
    def written(cls, fields: Fields) -> bool:
        """Whether a descriptor has one of this kind."""
        return cls.key in fields

    @classmethod
    @abstractmethod
    def read(cls, fields: Fields) -> Self:
        """The one that a descriptor has. Raises ValueError with what is wrong with it.

        That is noted at the key's value. Problems elsewhere it can note itself.
        """

    @abstractmethod
    def matches(self, value: str) -> bool:
        """Whether it takes a value. Callers choose values, so this is linear in their length."""

    @property
    def name(self) -> str:
        """What stands for it in paths, in `/rlconfig`, and in the key of a shared counter.

        No value and no other matcher may have the same there.
        """
        return matcher_name(self.key, self.text)

    @property
    def precedence(self) -> int:
        """Those of the lowest are asked first, and of equal precedence those declared first."""
        return 0

    @property
    def literals(self) -> Sequence[str]:
        """Values that are looked up, before any matcher is asked."""
        return ()

    @property
    def beyond_literals(self) -> bool:
        """Whether it takes any values beside its literals."""
        return True

    @property
    def claims(self) -> tuple[str, ...]:
        """Parts of what it takes that no other matcher of its level may have, too."""
        return ()

    @property
    def takes_all(self) -> bool:
        """Whether it takes every value, however long."""
        return False

    @property
    def beginning(self) -> str:
        """A text that all values begin with that it takes, as far as it can tell."""
        return ""

    @classmethod
    def excess(cls, level: Sequence[Matcher]) -> tuple[Matcher, str] | None:
        """What is wrong with all of this kind that one level has for a key, and with which."""
        if cls.most and len(level) > cls.most:
            return level[cls.most], f"more than {cls.most} of {cls.key} for one key at one level"
        return None

    @property
    def covered_text(self) -> str:
        """What those kinds take that cover by text, if they cover this one."""
        return self.beginning

    def covers(self, other: Matcher) -> bool:
        """Whether it takes all that another takes, as far as it can tell."""
        return self == other

    @property
    def example(self) -> str:
        """A value that it takes, to show how to ask; "" if none comes to mind."""
        return ""

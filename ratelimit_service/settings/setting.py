"""What is declared of a setting, and the groups in which help and docs show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

from ratelimit_service.settings.values import ValueType

__all__ = ["Group", "Setting", "declared_in"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: a field of `Settings` with what people are told of it."""

    name: str
    default: object
    value_type: ValueType[Any]
    help: str
    group: str

    @property
    def flag(self) -> str:
        """The flag on the command line."""
        return "--" + self._plain.replace("_", "-")

    @property
    def environment(self) -> str:
        """The name in the environment, above all of envoyproxy/ratelimit's names."""
        return "RATELIMIT_" + self._plain.upper()

    @property
    def default_environment(self) -> str:
        """The name in the environment below all others: what an image sets."""
        return "RATELIMIT_DEFAULT_" + self._plain.upper()

    @property
    def metavar(self) -> str:
        """What stands for a value in help; empty for a switch."""
        return self.value_type.metavar

    @property
    def parse(self) -> Callable[[str], object]:
        """Reads a value. Raises SettingsError."""
        return self.value_type.parse

    @property
    def default_text(self) -> str:
        """The default as it would be typed."""
        return self.value_type.show(self.default)

    @property
    def _plain(self) -> str:
        """The name without the unit."""
        return self.name.removesuffix("_us")


@dataclass(frozen=True, slots=True)
class Group:
    """Settings that belong together, under one heading."""

    title: str

    def setting(self, default: T, value_type: ValueType[T], text: str) -> T:
        """Declares a field of a dataclass as a setting of this group."""
        metadata = {
            "value_type": value_type,
            "help": text,
            "group": self.title,
        }
        return field(default=default, metadata=metadata)


def declared_in(settings: type) -> Iterator[Setting]:
    """Every setting that a dataclass declares, in its order."""
    for declared in fields(settings):
        assert declared.default is not MISSING  # noqa: S101 -- `Group.setting` gives one
        yield Setting(declared.name, declared.default, **declared.metadata)

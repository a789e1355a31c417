"""Values that begin with a text: `prefix: /api/`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratelimit_service.rules.matchers.matcher import Matcher

if TYPE_CHECKING:  # workers have matchers, but read no YAML
    from ratelimit_service.rules.fields import Fields

__all__ = ["Prefix"]


@dataclass(frozen=True, slots=True)
class Prefix(Matcher):
    """Every value that begins with this text. The longest prefix of a value wins."""

    key = "prefix"
    help = "Values that begin with this text."
    noun = "prefix"
    text: str

    @classmethod
    def read(cls, fields: Fields) -> Prefix:
        """Any text but none. Raises ValueError."""
        text = fields.text(cls.key)
        if not text:
            raise ValueError("prefix must be a text: leave it out to take any value")
        return cls(text)

    def matches(self, value: str) -> bool:
        """Whether a value begins with it."""
        return value.startswith(self.text)

    @property
    def precedence(self) -> int:
        """Longer ones first, and all of them before the patterns."""
        return -len(self.text)

"""What a change of rules means: for their callers, and for what is counted."""

from ratelimit_service.comparison.changes import Callers, Change, ChangeKind, Detail
from ratelimit_service.comparison.compare import compare
from ratelimit_service.comparison.reloads import difference
from ratelimit_service.comparison.sides import ComparedRules, SideError, read_sides

__all__ = [
    "Callers",
    "Change",
    "ChangeKind",
    "ComparedRules",
    "Detail",
    "SideError",
    "compare",
    "difference",
    "read_sides",
]

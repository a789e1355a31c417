"""What a change of rules means: for their callers, and for what is counted."""

from ratelimit_service.rule_lab.comparison.changes import Callers, Change, ChangeKind, Detail
from ratelimit_service.rule_lab.comparison.compare import compare
from ratelimit_service.rule_lab.comparison.reloads import difference
from ratelimit_service.rule_lab.comparison.rule_sets import RuleSet, RuleSetError, read_rule_sets

__all__ = [
    "Callers",
    "Change",
    "ChangeKind",
    "Detail",
    "RuleSet",
    "RuleSetError",
    "compare",
    "difference",
    "read_rule_sets",
]

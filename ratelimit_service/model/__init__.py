"""Frozen values that every part of the service speaks in. No behaviour beyond arithmetic."""

from ratelimit_service.model.algorithm import (
    TICKS_US,
    Algorithm,
    BundleFunction,
    CounterSpec,
    Denied,
)
from ratelimit_service.model.answer_style import (
    PLACEHOLDERS,
    AnswerStyle,
    Body,
    HeaderSet,
    unknown_placeholder,
)
from ratelimit_service.model.calendar import WEEKDAYS, Anchor, Calendar, Periods, zone
from ratelimit_service.model.decision import Code, Decision, Header, Status, whole_seconds
from ratelimit_service.model.hit import Hit, Mode, Outcome, new_tuple
from ratelimit_service.model.limit import (
    MAX_ADDEND,
    MAX_EXACT,
    WHOLE_PPM,
    CountDenied,
    FailurePolicy,
    Limit,
)
from ratelimit_service.model.network import Grouping, IPAddress, Network, address_of
from ratelimit_service.model.override import (
    MAX_OVERRIDES,
    MAX_PATTERNS,
    NEVER_US,
    Override,
    OverrideKind,
    moment_of,
    read_override,
    reason_of,
    time_text,
    too_many_overrides,
    too_many_patterns,
)
from ratelimit_service.model.parameter import Contradiction, Parameter, Takes
from ratelimit_service.model.request import Descriptor, Entry, Request
from ratelimit_service.model.schedule import DAY_MINUTES, DAYS, MINUTE_US, Schedule
from ratelimit_service.model.step import Held, Receipt, State, Step, step
from ratelimit_service.model.unit import SECOND_US, Unit

__all__ = [
    "DAYS",
    "DAY_MINUTES",
    "MAX_ADDEND",
    "MAX_EXACT",
    "MAX_OVERRIDES",
    "MAX_PATTERNS",
    "MINUTE_US",
    "NEVER_US",
    "PLACEHOLDERS",
    "SECOND_US",
    "TICKS_US",
    "WEEKDAYS",
    "WHOLE_PPM",
    "Algorithm",
    "Anchor",
    "AnswerStyle",
    "Body",
    "BundleFunction",
    "Calendar",
    "Code",
    "Contradiction",
    "CountDenied",
    "CounterSpec",
    "Decision",
    "Denied",
    "Descriptor",
    "Entry",
    "FailurePolicy",
    "Grouping",
    "Header",
    "HeaderSet",
    "Held",
    "Hit",
    "IPAddress",
    "Limit",
    "Mode",
    "Network",
    "Outcome",
    "Override",
    "OverrideKind",
    "Parameter",
    "Periods",
    "Receipt",
    "Request",
    "Schedule",
    "State",
    "Status",
    "Step",
    "Takes",
    "Unit",
    "address_of",
    "moment_of",
    "new_tuple",
    "read_override",
    "reason_of",
    "step",
    "time_text",
    "too_many_overrides",
    "too_many_patterns",
    "unknown_placeholder",
    "whole_seconds",
    "zone",
]

"""Frozen values that every part of the service speaks in. No behaviour beyond arithmetic."""

from ratelimit_service.model.calendar import WEEKDAYS, Calendar, Periods
from ratelimit_service.model.decision import Code, Decision, Header, Status, whole_seconds
from ratelimit_service.model.hit import Hit, Mode, Outcome, Receipt
from ratelimit_service.model.limit import BUCKETS, MAX_ADDEND, FailurePolicy, Limit
from ratelimit_service.model.measure import MAX_EXACT, TICKS_US, Anchor, Measure
from ratelimit_service.model.request import Descriptor, Entry, Request
from ratelimit_service.model.unit import SECOND_US, Unit

__all__ = [
    "BUCKETS",
    "MAX_ADDEND",
    "MAX_EXACT",
    "SECOND_US",
    "TICKS_US",
    "WEEKDAYS",
    "Anchor",
    "Calendar",
    "Code",
    "Decision",
    "Descriptor",
    "Entry",
    "FailurePolicy",
    "Header",
    "Hit",
    "Limit",
    "Measure",
    "Mode",
    "Outcome",
    "Periods",
    "Receipt",
    "Request",
    "Status",
    "Unit",
    "whole_seconds",
]

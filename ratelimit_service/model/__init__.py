"""Frozen values that every part of the service speaks in. No behaviour beyond arithmetic."""

from ratelimit_service.model.decision import Code, Decision, Header, Status, whole_seconds
from ratelimit_service.model.hit import Hit, Mode, Outcome
from ratelimit_service.model.limit import MAX_ADDEND, SECOND_US, FailurePolicy, Limit, Unit
from ratelimit_service.model.request import Descriptor, Entry, Request

__all__ = [
    "MAX_ADDEND",
    "SECOND_US",
    "Code",
    "Decision",
    "Descriptor",
    "Entry",
    "FailurePolicy",
    "Header",
    "Hit",
    "Limit",
    "Mode",
    "Outcome",
    "Request",
    "Status",
    "Unit",
    "whole_seconds",
]

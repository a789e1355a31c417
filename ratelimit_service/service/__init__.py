"""Bytes in, bytes out: what every transport and `/json` call."""

from ratelimit_service.limiter import DecidedBy
from ratelimit_service.model.call_origin import (
    CALLER_HEADERS,
    REQUEST_ID,
    CallOrigin,
    Headers,
)
from ratelimit_service.model.refusal import Answer, Refusal
from ratelimit_service.model.request import LEAST_TIMEOUT_US
from ratelimit_service.service.batch import Batch, CallbackBatch
from ratelimit_service.service.patience import counted_until
from ratelimit_service.service.records import DecidedBatch, DecisionRecord, Listener
from ratelimit_service.service.service import Service
from ratelimit_service.service.tracer import Traced, Tracer
from ratelimit_service.stores import NEVER, PRIORITIES

__all__ = [
    "CALLER_HEADERS",
    "LEAST_TIMEOUT_US",
    "NEVER",
    "PRIORITIES",
    "REQUEST_ID",
    "Answer",
    "Batch",
    "CallOrigin",
    "CallbackBatch",
    "DecidedBatch",
    "DecidedBy",
    "DecisionRecord",
    "Headers",
    "Listener",
    "Refusal",
    "Service",
    "Traced",
    "Tracer",
    "counted_until",
]

"""Protobuf on one side, the model on the other: the only package that knows protobuf.

JSON (`wire.json`) is imported by who needs it: a worker does not.
"""

from ratelimit_service.wire.messages import METHOD, POOL, SERVICE, is_method, parsed
from ratelimit_service.wire.request import (
    MAX_DESCRIPTORS,
    Split,
    decode_request,
    encode_request,
    last_value_at,
    plain_descriptor,
    plain_entries,
    split_request,
)
from ratelimit_service.wire.response import (
    EncodedLimit,
    decode_decision,
    encode_additions,
    encode_decision,
    encode_limit,
    encode_plain,
    encode_quota,
    encode_within,
)

__all__ = [
    "MAX_DESCRIPTORS",
    "METHOD",
    "POOL",
    "SERVICE",
    "EncodedLimit",
    "Split",
    "decode_decision",
    "decode_request",
    "encode_additions",
    "encode_decision",
    "encode_limit",
    "encode_plain",
    "encode_quota",
    "encode_request",
    "encode_within",
    "is_method",
    "last_value_at",
    "parsed",
    "plain_descriptor",
    "plain_entries",
    "split_request",
]

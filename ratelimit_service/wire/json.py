"""The same two messages as proto3 JSON, for `/json`."""

from __future__ import annotations

from google.protobuf.json_format import MessageToJson, Parse, ParseError

from ratelimit_service.errors import BadRequestError
from ratelimit_service.wire.messages import POOL, RateLimitRequest, RateLimitResponse

__all__ = ["decision_to_json", "request_from_json"]


def request_from_json(text: bytes) -> bytes:
    """A RateLimitRequest in proto3 JSON, serialized.

    Raises BadRequestError for anything else, and for fields that the message does not have.
    """
    if not text.strip():
        raise BadRequestError("json", "the body is empty: send a RateLimitRequest in JSON")
    message = RateLimitRequest()
    try:
        Parse(text.decode(), message, descriptor_pool=POOL)
    except (ParseError, UnicodeDecodeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise BadRequestError(
            "json", f"the body is no RateLimitRequest in JSON: {reason}"
        ) from error
    return message.SerializeToString()


def decision_to_json(body: bytes) -> bytes:
    """A serialized RateLimitResponse in proto3 JSON: lowerCamelCase, zero fields left out."""
    message = RateLimitResponse.FromString(body)
    return MessageToJson(message, indent=None, descriptor_pool=POOL).encode()

"""`/inspect`: how the counters of a descriptor stand."""

from __future__ import annotations

from collections.abc import Iterator

from ratelimit_service.admin.route import AdminRequest, Operating, Route
from ratelimit_service.descriptor_text import DescriptorTextError, read_descriptor
from ratelimit_service.service.questions import QuestionError

__all__ = ["routes"]


def routes(operating: Operating) -> Iterator[Route]:
    """The routes of this file."""

    async def inspect(request: AdminRequest) -> object:
        query = request.query
        unknown = query.keys() - {"domain", "descriptor"}
        if unknown or query.keys() < {"domain", "descriptor"}:
            raise QuestionError("write ?domain=DOMAIN&descriptor=key=value,key=value")
        try:
            descriptor = read_descriptor(query["descriptor"])
        except DescriptorTextError as error:
            raise QuestionError(str(error)) from error
        entries = [list(entry) for entry in descriptor.entries]
        return await operating.ask("inspect", {"domain": query["domain"], "descriptor": entries})

    does = "the counters of a descriptor as they stand (?domain=D&descriptor=key=value,…)"
    yield Route("GET", "/inspect", does, inspect)

"""gRPC's server reflection (grpc.reflection.v1 and v1alpha): a message in, a message out.

Clients ask what services, messages and extensions there are, and get the files that declare them.
v1 and v1alpha have the same messages by other names, so those of v1 serve both. The package
grpcio-reflection would bring all of grpcio along.
"""

from __future__ import annotations

from ratelimit_service.errors import StatusCode
from ratelimit_service.grpc.health import HEALTH_SERVICE
from ratelimit_service.wire import POOL, SERVICE, is_method, parsed
from ratelimit_service.wire.grpc_services import ServerReflectionRequest, ServerReflectionResponse
from ratelimit_service.wire.reservations import RESERVING_SERVICE

__all__ = ["REFLECTION_METHOD", "REFLECTION_PATHS", "REFLECTION_SERVICES", "reflect"]

_PACKAGE = "grpc.reflection.v1"

REFLECTION_SERVICES = (f"{_PACKAGE}.ServerReflection", f"{_PACKAGE}alpha.ServerReflection")
"""What clients ask for: v1 first, most of them v1alpha if they do not get it."""

REFLECTION_METHOD = "ServerReflectionInfo"

REFLECTION_PATHS = frozenset(
    f"/{service}/{REFLECTION_METHOD}".encode() for service in REFLECTION_SERVICES
)

_SERVICES = sorted((SERVICE, RESERVING_SERVICE, HEALTH_SERVICE, *REFLECTION_SERVICES))


def reflect(message: bytes) -> bytes:
    """Answers one serialized request. Raises BadRequestError if it cannot be read."""
    request = parsed(ServerReflectionRequest, message)
    answer = ServerReflectionResponse(valid_host=request.host, original_request=request)
    try:
        _fill(answer, request)
    except KeyError:
        answer.error_response.error_code = StatusCode.NOT_FOUND
        answer.error_response.error_message = "there is nothing of this name"
    return answer.SerializeToString()


def _fill(answer: ServerReflectionResponse, request: ServerReflectionRequest) -> None:
    """Writes what was asked for into the answer. Raises KeyError if there is no such thing."""
    kind = request.WhichOneof("message_request")
    if kind == "list_services":
        for name in _SERVICES:
            answer.list_services_response.service.add(name=name)
    elif kind == "file_by_filename":
        _add_files(answer, request.file_by_filename)
    elif kind == "file_containing_symbol":
        symbol = request.file_containing_symbol
        if is_method(symbol):  # the pool finds services, not their methods
            symbol = symbol.rpartition(".")[0]
        _add_files(answer, POOL.FindFileContainingSymbol(symbol).name)
    elif kind == "file_containing_extension":
        extension = request.file_containing_extension
        extended = POOL.FindMessageTypeByName(extension.containing_type)
        extension_field = POOL.FindExtensionByNumber(extended, extension.extension_number)
        _add_files(answer, POOL.FindFileContainingSymbol(extension_field.full_name).name)
    elif kind == "all_extension_numbers_of_type":
        name = request.all_extension_numbers_of_type
        extensions = POOL.FindAllExtensions(POOL.FindMessageTypeByName(name))
        answer.all_extension_numbers_response.base_type_name = name
        answer.all_extension_numbers_response.extension_number.extend(
            sorted(each.number for each in extensions)
        )
    else:
        answer.error_response.error_code = StatusCode.INVALID_ARGUMENT
        answer.error_response.error_message = "the request asks for nothing"


def _add_files(answer: ServerReflectionResponse, name: str) -> None:
    """Adds a file and all that it imports, each once, itself first."""
    names = [name]
    for each in names:
        file = POOL.FindFileByName(each)
        answer.file_descriptor_response.file_descriptor_proto.append(file.serialized_pb)
        names += [other.name for other in file.dependencies if other.name not in names]

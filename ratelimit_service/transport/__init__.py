"""How requests reach the service over gRPC: one transport a module, health and reflection."""

from ratelimit_service.transport.grpcio import GrpcioServer
from ratelimit_service.transport.h2 import H2Server

__all__ = ["TRANSPORTS", "GrpcioServer", "H2Server"]

TRANSPORTS: dict[str, type[GrpcioServer | H2Server]] = {"h2": H2Server, "grpcio": GrpcioServer}
"""Every transport by the name that `--transport` takes."""

"""Every transport, by the name that `--transport` takes."""

from __future__ import annotations

from ratelimit_service.grpc.grpcio import GrpcioServer
from ratelimit_service.grpc.server import H2Server

__all__ = ["TRANSPORTS"]

TRANSPORTS: dict[str, type[GrpcioServer | H2Server]] = {"h2": H2Server, "grpcio": GrpcioServer}

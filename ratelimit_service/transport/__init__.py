"""How requests reach the service over gRPC: one transport a module, health and reflection."""

from ratelimit_service.transport.grpcio import GrpcioServer

__all__ = ["GrpcioServer"]

"""How requests reach the service over gRPC: one transport a module, health and reflection.

Nothing is exported: a supervisor wants the TLS files and no grpc, which does not bear forks. A
worker wants `h2`, and none of grpcio's memory.
"""

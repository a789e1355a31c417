"""How requests reach the service over gRPC: one transport a module, health and reflection.

Nothing is exported. A supervisor wants the TLS files, but not grpc, which does not work in a
process that forks. A worker wants `h2`, but not the memory that grpcio takes.
"""

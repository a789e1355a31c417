"""How requests reach the service over gRPC: one transport a module, health and reflection.

`server` has the sockets of the thin transport, `calls` knows what is called, and `call_batch` what
is decided together; `h2` speaks HTTP/2. `grpcio` is the other transport. Nothing is exported: a
supervisor wants the TLS files, but not grpc, which does not work in a process that forks; a worker
wants `h2`, but not the memory that grpcio takes.
"""

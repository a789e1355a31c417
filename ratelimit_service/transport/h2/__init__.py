"""gRPC over HTTP/2, read straight from the socket: the thin transport.

`frames` and `headers` know bytes, `connection` the protocol's states, `protocol` sockets and
timers, `calls` what is called. Only `protocol` and `server` do I/O.
"""

from ratelimit_service.transport.h2.server import H2Server

__all__ = ["H2Server"]

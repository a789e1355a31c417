"""gRPC over HTTP/2, read straight from the socket: the thin transport.

`frames`, `fields`, `headers` and `messages` know bytes. `connection` is made of parts that keep the
protocol's states: `receiving` (what is heard), `sending` (what is said), `budget` (what it costs)
and others. `protocol` knows sockets and timers, `overload` says for which calls there is time, and
`calls` knows what is called. Only `protocol` and `server` do I/O, and `drawing`, which reads the
sockets of late clients.
"""

from ratelimit_service.grpc.h2.server import H2Server

__all__ = ["H2Server"]

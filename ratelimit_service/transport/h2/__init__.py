"""gRPC over HTTP/2, read straight from the socket: the thin transport.

`frames`, `fields`, `headers` and `messages` know bytes; `connection` (what is heard), `sending`
(what is said) and `account` (what it costs) the protocol's states; `protocol` knows sockets and
timers, `turns` whose turn it is, `overload` for whom there is time, `calls` what is called. Only
`protocol` and `server` do I/O.
"""

from ratelimit_service.transport.h2.server import H2Server

__all__ = ["H2Server"]

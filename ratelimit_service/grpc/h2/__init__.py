"""HTTP/2 as gRPC speaks it, from bytes to calls and back. It knows nothing of the service.

`frames`, `fields`, `headers` and `messages` know bytes. `connection` is made of parts that keep the
protocol's states: `receiving` (what is heard), `sending` (what is said), `budget` (what it costs)
and others. `client` has a connection read and written when the scheduler visits it, and `admission`
says for how many calls there is time.
"""

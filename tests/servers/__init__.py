"""Real processes that tests run against: Redis, Envoy, the service itself, an upstream."""

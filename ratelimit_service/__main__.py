"""`python -m ratelimit_service` is the command `ratelimit`."""

from ratelimit_service.cli import main

main()

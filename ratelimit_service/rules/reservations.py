"""Whether hits of a limit can be held before they are counted: keys of `rate_limit`, and of a file.

What must not live here: what is held (`algorithms.holding`).
"""

from __future__ import annotations

from typing import Final

from ratelimit_service.algorithms import ALGORITHMS, can_reserve
from ratelimit_service.model import WHOLE_PPM, Limit, Reservations
from ratelimit_service.rules.fields import Fields
from ratelimit_service.rules.language import ON_EXPIRY

__all__ = ["RESERVATION_KEYS", "read_reservations"]

RESERVATION_KEYS: Final = ("max_reservation", "max_reservation_ttl", "on_expiry")
"""What says more of reservations, where a limit takes them."""


def read_reservations(
    fields: Fields, limit: Limit, most_ppm: int, ttl_us: int, *, every: bool
) -> Reservations | None:
    """How a limit takes reservations; None if it takes none.

    Those of a file where `every` limit takes them do, unless they say otherwise, or cannot.
    """
    given = fields.given("reservations")
    wanted = fields.switch("reservations") if given else every
    if given and wanted:
        if fields.given("max_wait"):
            message = (
                "max_wait and reservations exclude each other: remove one; what waits in a queue "
                "has its place already"
            )
            fields.report("reservations", message, key="max_wait")
        if ALGORITHMS[limit.algorithm].leases:
            message = (
                f"reservations means nothing with {limit.algorithm}: a request that reserves takes "
                "one place under its id, and settle gives it back"
            )
            fields.report("reservations", message, key="reservations")
    if not wanted:
        for name in fields.among(RESERVATION_KEYS):
            message = f"{name} means nothing without reservations: true"
            fields.report("reservations", message, key=name)
    charged = fields.one_of("on_expiry", ON_EXPIRY, ON_EXPIRY[0]) == "charge"
    if not wanted or not can_reserve(limit):
        return None
    return Reservations(most_ppm or WHOLE_PPM, ttl_us, charged)

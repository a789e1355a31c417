"""With how many examples a law is tried."""

from __future__ import annotations

from hypothesis import settings


def up_to(number: int) -> int:
    """So many; with `--unit` as few as all other laws, since it is run after each change."""
    unit = settings.get_current_profile_name() == "unit"
    return min(number, settings().max_examples) if unit else number

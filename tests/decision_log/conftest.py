"""Services that write their decisions down."""

from tests.runtime.conftest import start

__all__ = ["start"]

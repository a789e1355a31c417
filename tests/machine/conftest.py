"""What walks need beside the servers."""

from tests.stores.conftest import ring_url

__all__ = ["ring_url"]

"""Internet addresses and networks as numbers, and groups of addresses that count as one caller."""

from __future__ import annotations

from socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from typing import Final, NamedTuple

__all__ = ["Grouping", "IPAddress", "Network", "address_of"]

_BITS: Final = {4: 32, 6: 128}
_MAPPED: Final = b"\0" * 10 + b"\xff\xff"
"""What an IPv4 address begins with where it is written as IPv6: `::ffff:10.0.0.7`."""


class IPAddress(NamedTuple):
    """An address: its family, 4 or 6, and its bits as a number."""

    family: int
    number: int

    @staticmethod
    def bits_of(family: int) -> int:
        """How many bits the addresses of a family have."""
        return _BITS[family]

    @property
    def text(self) -> str:
        """As it is usually written: `10.0.0.7`, `2001:db8::1`."""
        if self.family == 4:
            return inet_ntop(AF_INET, self.number.to_bytes(4, "big"))
        return inet_ntop(AF_INET6, self.number.to_bytes(16, "big"))


def address_of(text: str) -> IPAddress | None:
    """The address that a text is; None if it is none. `::ffff:10.0.0.7` is 10.0.0.7."""
    try:
        if ":" not in text:
            return IPAddress(4, int.from_bytes(inet_pton(AF_INET, text), "big"))
        packed = inet_pton(AF_INET6, text)
    except (OSError, ValueError):  # ValueError: it holds a NUL, which no C string can
        return None
    if packed.startswith(_MAPPED):
        return IPAddress(4, int.from_bytes(packed[12:], "big"))
    return IPAddress(6, int.from_bytes(packed, "big"))


class Network(NamedTuple):
    """The addresses of a family whose first `length` bits are these."""

    family: int
    bits: int
    length: int

    @classmethod
    def around(cls, address: IPAddress, length: int) -> Network:
        """The network of this size that an address is in."""
        family, number = address
        return cls(family, number >> (_BITS[family] - length), length)

    @property
    def address(self) -> IPAddress:
        """Its first address."""
        return IPAddress(self.family, self.bits << (_BITS[self.family] - self.length))

    def has(self, address: IPAddress) -> bool:
        """Whether an address is one of them."""
        family, number = address
        return family == self.family and number >> (_BITS[family] - self.length) == self.bits

    def __str__(self) -> str:
        return f"{self.address.text}/{self.length}"


class Grouping(NamedTuple):
    """How long the prefixes are by which addresses are put together; whole ones have all bits."""

    ipv4: int = 32
    ipv6: int = 128

    def of(self, value: str) -> str | None:
        """The network that an address is in, as text, or the address; None if it is none.

        An address that stays whole is written in the usual way: each has one text.
        """
        address = address_of(value)
        if address is None:
            return None
        length = self[0] if address.family == 4 else self[1]
        if length == _BITS[address.family]:
            return address.text
        return str(Network.around(address, length))

    @property
    def key(self) -> str:
        """What stands for it in the key of a counter."""
        return f"{self.ipv4}.{self.ipv6}"

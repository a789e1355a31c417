"""Addresses of networks: `cidr: 10.0.0.0/8`, or a list of such."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING, Final

from ratelimit_service.model import IPAddress, Network, address_of
from ratelimit_service.rules.matchers.matcher import ONE_OR_MORE, Index, Matcher
from ratelimit_service.rules.paths import MatcherName, matcher_name
from ratelimit_service.rules.problem import quoted

if TYPE_CHECKING:  # workers have matchers, but read no YAML
    from ratelimit_service.rules.reader import Fields

__all__ = ["Networks"]

_BEFORE_PATTERNS: Final = -(2**20)


class _ByPrefix(Index):
    """Networks by their first bits: one look-up for each prefix length that a level has."""

    def __init__(self) -> None:
        self._lengths: dict[int, list[tuple[int, int, dict[int, int]]]] = {4: [], 6: []}
        """For each family the prefix lengths, longest first, each with the bits that follow it,
        and the places of its networks by their first bits."""

    def add(self, matcher: Matcher, place: int) -> None:
        """Adds the next one's networks."""
        assert isinstance(matcher, Networks)  # noqa: S101 -- it is the index of these
        for family, bits, length in matcher.networks:
            self._of(family, length).setdefault(bits, place)

    def _of(self, family: int, length: int) -> dict[int, int]:
        known = self._lengths[family]
        for each, _, places in known:
            if each == length:
                return places
        added: dict[int, int] = {}
        known.append((length, IPAddress.bits_of(family) - length, added))
        known.sort(key=lambda each: -each[0])
        return added

    def first(self, value: str) -> int:
        """The one with the longest prefix."""
        address = address_of(value)
        if address is None:
            return -1
        family, number = address
        for _, rest, places in self._lengths[family]:
            place = places.get(number >> rest)
            if place is not None:
                return place
        return -1

    def all(self, value: str) -> Iterable[int]:
        """The longest prefix first."""
        address = address_of(value)
        if address is None:
            return ()
        family, number = address
        found = [places.get(number >> rest, -1) for _, rest, places in self._lengths[family]]
        return dict.fromkeys(place for place in found if place >= 0)


@dataclass(frozen=True, slots=True)
class Networks(Matcher):
    """The addresses of some networks. Of several descriptors the longest prefix wins."""

    key = "cidr"
    help = "A network instead, or a list: every address in it matches. See [matching](#matching)."
    shape = ONE_OR_MORE
    noun = "network"
    index = _ByPrefix
    beaten = "a smaller network goes before"
    networks: tuple[Network, ...]

    @classmethod
    def read(cls, fields: Fields) -> Networks:
        """A network or a list of them. Raises ValueError."""
        networks: dict[Network, None] = {}
        for text, node in fields.one_or_more(cls.key):
            try:
                network = _network(text)
            except ValueError as error:
                fields.report("cidr", str(error), at=node)
                continue
            if network in networks:
                fields.report("cidr", f"{network} stands in this list twice", at=node)
            networks[network] = None
        if not networks:
            raise ValueError("cidr needs a network, as 10.0.0.0/8, or a list of them")
        return cls(tuple(networks))

    def __reduce__(self) -> tuple[object, tuple[list[int]]]:
        """How it is pickled: a dataclass's own way takes longer, and serving waits for it."""
        return _networks, ([number for network in self.networks for number in network],)

    def matches(self, value: str) -> bool:
        """Whether it is an address of one of them."""
        address = address_of(value)
        return address is not None and any(network.has(address) for network in self.networks)

    @property
    def text(self) -> str:  # type: ignore[override]  # it is only read
        """The networks."""
        return ", ".join(map(str, self.networks))

    @property
    def name(self) -> MatcherName:
        """The networks, whatever their order in the file."""
        return matcher_name(self.key, *map(str, sorted(self.networks)))

    @property
    def rank(self) -> int:
        """Before regular expressions and patterns."""
        return _BEFORE_PATTERNS

    @property
    def claims(self) -> tuple[str, ...]:
        """Each network can belong to one descriptor only."""
        return tuple(map(str, self.networks))

    @property
    def example(self) -> str:
        """The first address of the first."""
        return self.networks[0].address.text


def _networks(numbers: list[int]) -> Networks:
    each = iter(numbers)
    return Networks(tuple(map(Network, each, each, each)))


_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_NO_HOST_BITS: Final = "write its first address"


def _network(text: str) -> Network:
    """A network of a file. Raises ValueError with what is wrong with it."""
    address, slash, length = text.partition("/")
    if slash and not (length.isascii() and length.isdigit()):
        raise ValueError(f"{quoted(text)} is no network: write its length as in 10.0.0.0/8")
    try:
        network: IPv4Network | IPv6Network = ip_network(text, strict=False)
    except ValueError as error:
        raise ValueError(
            f"{quoted(text)} is no network: write one as 10.0.0.0/8 or 2001:db8::/32"
        ) from error
    if isinstance(network, IPv6Network) and network.network_address.scope_id:
        raise ValueError(f"{quoted(text)} has a zone, which addresses of callers do not have")
    found = address_of(address)
    if found is None:
        raise ValueError(f"{quoted(text)} is no network: write one as 10.0.0.0/8 or 2001:db8::/32")
    bits = network.prefixlen
    if found.family == 4 and network.version == 6:
        bits -= 96  # an IPv4 address, written as IPv6
        if bits < 0:
            raise ValueError(
                f"{quoted(text)} holds all of IPv4 written as IPv6: write 0.0.0.0/0 for IPv4"
            )
    whole = Network.around(found, bits)
    if whole.address != found:
        raise ValueError(f"{quoted(text)} has bits behind its prefix: write {whole}")
    return whole

"""Addresses of networks: `cidr: 10.0.0.0/8`, or a list of such."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING, Final, cast

from ratelimit_service.containers.spread import SpreadTuple, spread_tuple
from ratelimit_service.model import IPAddress, Network, address_of
from ratelimit_service.rules.matchers.matcher import ONE_OR_MORE, Index, Matcher, read_list
from ratelimit_service.rules.paths import MatcherName, matcher_name
from ratelimit_service.rules.problem import quoted

if TYPE_CHECKING:  # workers have matchers, but read no YAML
    from ratelimit_service.rules.fields import Fields

__all__ = ["Networks"]

_BEFORE_PATTERNS: Final = -(2**20)

_AT_ONCE: Final = 256
"""Networks that are sorted at once: less than a millisecond's worth."""

_HALF: Final = 64
"""Bits that fit into an array's number."""
_LOW: Final = (1 << _HALF) - 1

_NetworkEntry = tuple[int, int, int]
"""A network's first address, the length of its prefix, and its matcher's position."""


class _Family:
    """The networks of one family, cut into stretches of addresses that go to the same one."""

    def __init__(self, bits: int) -> None:
        """`bits` is how many an address has."""
        self._bits = bits
        self._lows = array("Q")
        """The first address of each stretch, or its lower half where there are upper ones."""
        self._highs = array("Q")
        """Its upper half, if addresses have more than 64 bits."""
        self._smallest = array("i")
        """For each stretch its smallest network, by the order of their first addresses; or -1."""
        self._first = array("i")
        """For each stretch the position of that network's matcher, or -1."""
        self._positions = array("i")
        """For each network its matcher's position."""
        self._around = array("i")
        """For each network the smallest one around it, or -1."""
        self._begun = 0
        """The first address of the last stretch."""
        self._base = 1 << bits
        """The first address of the second stretch: here spans begin."""
        self._shift = 0
        """How many bits an address in a span has."""
        self._before = array("i")
        """How many stretches begin before each span, and at last how many there are.

        There are about as many spans as stretches. If these are not all in one corner, few are left
        to search in a span.
        """

    def arranging(self, runs: list[list[_NetworkEntry]]) -> Iterator[None]:
        """Takes networks in sorted runs, with a step after each few."""
        open_ones: list[tuple[int, int]] = []
        """Where the networks end that the sweep is within, and which they are."""
        self._mark(0, -1)
        each = merge(*map(iter, runs))
        runs.clear()
        before = None
        for number, (first, length, position) in enumerate(each):
            if number % _AT_ONCE == 0:
                yield
            if (first, length) == before:
                continue  # the first declared one has it
            before = first, length
            while open_ones and open_ones[-1][0] <= first:
                self._close(open_ones)
            self._around.append(open_ones[-1][1] if open_ones else -1)
            open_ones.append((first + (1 << self._bits - length), len(self._positions)))
            self._positions.append(position)
            self._mark(first, len(self._positions) - 1)
        while open_ones:
            self._close(open_ones)
        yield from self._spanning()

    def _spanning(self) -> Iterator[None]:
        """Cuts the addresses from the second stretch to the last into spans of one size."""
        count = len(self._lows)
        if count == 1:
            return
        self._base = self._start(1)
        self._shift = max(0, (self._begun - self._base).bit_length() - count.bit_length())
        for at in range(1, count):
            if at % _AT_ONCE == 0:
                yield
            span = self._start(at) - self._base >> self._shift
            self._before.extend(array("i", [at]) * (span + 1 - len(self._before)))
        self._before.append(count)

    def _start(self, stretch: int) -> int:
        """Its first address."""
        low = self._lows[stretch]
        return low if self._bits <= _HALF else self._highs[stretch] << _HALF | low

    def _close(self, open_ones: list[tuple[int, int]]) -> None:
        end, _ = open_ones.pop()
        self._mark(end, open_ones[-1][1] if open_ones else -1)

    def _mark(self, start: int, smallest: int) -> None:
        """From this address on all go to another network."""
        if start >> self._bits:
            return  # there is no address behind the last one
        position = self._positions[smallest] if smallest >= 0 else -1
        if self._smallest and self._begun == start:
            self._smallest[-1] = smallest
            self._first[-1] = position
            return
        self._begun = start
        if self._bits > _HALF:
            self._highs.append(start >> _HALF)
        self._lows.append(start & _LOW)
        self._smallest.append(smallest)
        self._first.append(position)

    def _stretch(self, number: int) -> int:
        """The index of the stretch that an address is in."""
        if number < self._base:
            return 0
        if number >= self._begun:
            return len(self._lows) - 1
        span = number - self._base >> self._shift
        begin, end = self._before[span], self._before[span + 1]
        if self._bits > _HALF:
            high = number >> _HALF
            begin = bisect_left(self._highs, high, begin, end)
            end = bisect_right(self._highs, high, begin, end)
            number &= _LOW
        return bisect_right(self._lows, number, begin, end) - 1

    def first(self, number: int) -> int:
        """The position of the smallest network that an address is in, or -1."""
        return self._first[self._stretch(number)]

    def all(self, number: int) -> Iterator[int]:
        """The positions of all that it is in, the smallest first."""
        network = self._smallest[self._stretch(number)]
        while network >= 0:
            yield self._positions[network]
            network = self._around[network]


class _ByAddress(Index):
    """Networks by the stretches of addresses that go to them, however long their prefixes are."""

    def __init__(self) -> None:
        self._families = {4: _Family(IPAddress.bits_of(4)), 6: _Family(IPAddress.bits_of(6))}
        self._runs: dict[int, list[list[_NetworkEntry]]] = {4: [], 6: []}
        """What has been added: as serving may wait, it is sorted a little at a time."""
        self._lists: list[tuple[Networks, int]] = []
        """Those with many networks, which are still to be added."""

    def add(self, matcher: Matcher, position: int) -> None:
        """Adds the next one's networks."""
        assert isinstance(matcher, Networks)  # noqa: S101 -- it is the index of these
        if matcher.parts:
            self._lists.append((matcher, position))
        else:
            self._add(matcher.networks, position)

    def _add(self, networks: Iterable[Network], position: int) -> None:
        for network in networks:
            runs = self._runs[network.family]
            if not runs or len(runs[-1]) == _AT_ONCE:
                runs.append([])
            runs[-1].append((network.address.number, network.length, position))

    def completing(self) -> Iterator[None]:
        """Sorts them and finds out which are within others."""
        while self._lists:
            matcher, position = self._lists.pop()
            for part in matcher.parts:
                self._add(cast("tuple[Network, ...]", part), position)
                yield
        for family, runs in self._runs.items():
            for run in runs:
                run.sort()
                yield
            yield from self._families[family].arranging(runs)

    def first(self, value: str) -> int:
        """The one with the longest prefix."""
        address = address_of(value)
        if address is None:
            return -1
        family, number = address
        return self._families[family].first(number)

    def all(self, value: str) -> Iterable[int]:
        """The longest prefix first."""
        address = address_of(value)
        if address is None:
            return ()
        family, number = address
        return dict.fromkeys(self._families[family].all(number))


@dataclass(frozen=True, slots=True)
class Networks(Matcher):
    """The addresses of some networks. Of several descriptors the longest prefix wins."""

    key = "cidr"
    help = "A network instead, or a list: every address in it matches. See [matching](#matching)."
    shape = ONE_OR_MORE
    noun = "network"
    index = _ByAddress
    beaten = "a smaller network goes before"
    networks: Sequence[Network]

    @classmethod
    def read(cls, fields: Fields) -> Networks:
        """A network or a list of them. Raises ValueError."""
        empty = "cidr needs a network, as 10.0.0.0/8, or a list of them"
        networks = read_list(fields, cls.key, lambda text, _: _network(text), empty)
        return cls(spread_tuple(networks))

    @property
    def parts(self) -> Sequence[tuple[object, ...]]:
        """Those of a large list."""
        return self.networks.parts if isinstance(self.networks, SpreadTuple) else ()

    @classmethod
    def made_of(cls, parts: Sequence[tuple[object, ...]]) -> Networks:
        """The list of these parts."""
        return cls(SpreadTuple(cast("Sequence[tuple[Network, ...]]", parts)))

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
    def precedence(self) -> int:
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


_IPV4_LENGTHS: Final = frozenset(map(str, range(33)))


def _network(text: str) -> Network:
    """A network of a file. Raises ValueError with what is wrong with it."""
    address, slash, length = text.partition("/")
    if length in _IPV4_LENGTHS and ":" not in address:  # as most are; the rest takes long
        parsed = address_of(address)
        if parsed is not None and (whole := Network.around(parsed, int(length))).address == parsed:
            return whole
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
    parsed = address_of(address)
    if parsed is None:
        raise ValueError(f"{quoted(text)} is no network: write one as 10.0.0.0/8 or 2001:db8::/32")
    bits = network.prefixlen
    if parsed.family == 4 and network.version == 6:
        bits -= 96  # an IPv4 address, written as IPv6
        if bits < 0:
            raise ValueError(
                f"{quoted(text)} holds all of IPv4 written as IPv6: write 0.0.0.0/0 for IPv4"
            )
    whole = Network.around(parsed, bits)
    if whole.address != parsed:
        raise ValueError(f"{quoted(text)} has bits behind its prefix: write {whole}")
    return whole

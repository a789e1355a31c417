"""Kuadrant's four methods on the gRPC port, over real sockets and both transports.

It is long because each of the four is asked for all that it may answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import pytest

from ratelimit_service.errors import StatusCode
from ratelimit_service.grpc.h2.frames import FrameType
from ratelimit_service.model import MAX_ADDEND, Hit, Hold, Request
from ratelimit_service.observability.health import Health, Phase
from ratelimit_service.observability.stats import Stats
from ratelimit_service.service import Refusal
from ratelimit_service.settings import Settings
from ratelimit_service.stores import NEVER, Done, Settled, Wanted, always, judge
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.wire import METHOD, SERVICE, encode_request
from ratelimit_service.wire.messages import RateLimitRequest, RateLimitResponse
from ratelimit_service.wire.reservations import (
    RESERVING_SERVICE,
    CommitRequest,
    CommitResponse,
    ReserveRequest,
    ReserveResponse,
)
from tests.grpc.ends import come
from tests.grpc.served_ends import Ends
from tests.grpc.transports import TRANSPORTS
from tests.service.asking import Asking, Away, descriptor
from tests.service.overriding import BAN, EXEMPT, override
from tests.service.reserving import Gateway as Direct
from tests.service.reserving import descriptors
from tests.waiting import PATIENCE_SECONDS

RULES = """
domain: llm
reservations: true
descriptors:
- key: user
  rate_limit: {unit: year, requests_per_unit: 1000}
- key: model
  rate_limit: {unit: year, requests_per_unit: 500, reservations: false}
- key: small
  rate_limit: {unit: year, requests_per_unit: 1000, max_reservation: 10%}
- key: watched
  shadow_mode: true
  rate_limit: {unit: year, requests_per_unit: 10}
- key: place
  rate_limit: {unit: year, requests_per_unit: 1, algorithm: concurrency}
- key: layers
  charge: first
  rate_limits:
  - {name: first, unit: year, requests_per_unit: 10, reservations: false}
  - {name: second, unit: month, requests_per_unit: 100, reservations: false}
- key: pools
  charge: first
  rate_limits:
  - {name: tier, unit: year, requests_per_unit: 500, max_reservation: 80%}
  - {name: spare, unit: month, requests_per_unit: 1000}
- key: places first
  charge: first
  rate_limits:
  - {name: slot, unit: year, requests_per_unit: 9, algorithm: concurrency, reservations: false}
  - {name: else, unit: year, requests_per_unit: 10, reservations: false}
- key: mixed
  charge: first
  rate_limits:
  - {name: window, unit: year, requests_per_unit: 10, reservations: false}
  - {name: places, unit: year, requests_per_unit: 10, algorithm: concurrency, reservations: false}
- key: unlimited
  rate_limit: {unlimited: true}
"""
OK = RateLimitResponse.OK
OVER = RateLimitResponse.OVER_LIMIT


class Gateway:
    """What a gateway does: it asks, reserves, commits and reports."""

    def __init__(self, channel: grpc.aio.Channel, asking: Asking) -> None:
        self.channel = channel
        self.asking = asking

    async def call(self, method: str, message: bytes, service: str = RESERVING_SERVICE) -> bytes:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(
            f"/{service}/{method}"
        )
        return await call(message, timeout=PATIENCE_SECONDS)

    async def reserve(
        self, amount: int, *texts: str, reservation_id: str = "", seconds: int = 0
    ) -> tuple[bool, str]:
        request = ReserveRequest(
            domain="llm",
            amount=amount,
            reservation_id=reservation_id,
            descriptors=descriptors(texts),
        )
        if seconds:
            request.ttl.seconds = seconds
        answer = ReserveResponse.FromString(await self.call("Reserve", request.SerializeToString()))
        return answer.code == OK, answer.reservation_id

    async def commit(self, reservation_id: str, actual: int, *texts: str) -> bool:
        request = CommitRequest(
            domain="llm",
            reservation_id=reservation_id,
            actual_amount=actual,
            descriptors=descriptors(texts),
        )
        answer = await self.call("Commit", request.SerializeToString())
        return CommitResponse.FromString(answer).reservation_released

    async def ask(self, hits: int, *texts: str, method: str = "CheckRateLimit") -> bool:
        request = RateLimitRequest(domain="llm", hits_addend=hits, descriptors=descriptors(texts))
        answer = await self.call(method, request.SerializeToString())
        return RateLimitResponse.FromString(answer).overall_code == OK

    async def left(self, text: str) -> int:
        """What remains, as Envoy's method says it to a look."""
        body = encode_request(Request("llm", (descriptor(text)._replace(hits_addend=0),)))
        answer = RateLimitResponse.FromString(await self.call(METHOD, body, SERVICE))
        return answer.statuses[0].limit_remaining


@pytest.fixture(params=TRANSPORTS)
async def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Gateway]:
    asking, health = Asking(tmp_path, RULES), Health()
    server = TRANSPORTS[request.param]("127.0.0.1:0", asking.service, health)
    port = await server.start()
    health.enter(Phase.SERVING)
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    yield Gateway(channel, asking)
    await channel.close()
    await server.stop(0)


async def test_what_is_reserved_is_held_until_it_is_committed(gateway: Gateway) -> None:
    """There is room beside it, for all methods; a commit counts what was used, and once."""
    passes, held = await gateway.reserve(600, "user=a")

    assert passes
    assert await gateway.left("user=a") == 400
    assert await gateway.reserve(401, "user=a") == (False, "")
    assert not await gateway.ask(401, "user=a")
    assert await gateway.ask(400, "user=a")
    assert await gateway.left("user=a") == 400
    assert await gateway.commit(held, 250, "user=a")
    assert await gateway.left("user=a") == 750
    assert not await gateway.commit(held, 250, "user=a")
    assert await gateway.left("user=a") == 750
    assert gateway.asking.stats.reservations == {"held": 1, "denied": 1, "settled": 1, "late": 1}


async def test_a_commit_without_an_id_of_ours_is_a_report(gateway: Gateway) -> None:
    """It counts each time, as Report does: without a number one hit."""
    assert not await gateway.commit("", 10, "user=a")
    assert not await gateway.commit("abc", 10, "user=a")
    assert await gateway.ask(0, "user=a", method="Report")
    assert await gateway.left("user=a") == 979


async def test_an_error_commits_nothing_at_once(gateway: Gateway) -> None:
    """A commit of 0 gives back all that was held."""
    _, held = await gateway.reserve(600, "user=a")

    assert await gateway.commit(held, 0, "user=a")
    assert await gateway.left("user=a") == 1_000


async def test_more_than_was_held_counts_and_shows(gateway: Gateway) -> None:
    """The overrun is counted, beyond the limit if need be."""
    _, held = await gateway.reserve(10, "user=a")

    assert await gateway.commit(held, 1_100, "user=a")
    assert not await gateway.ask(1, "user=a")
    assert gateway.asking.stats.reservations["overrun"] == 1


async def test_all_descriptors_hold_or_none(gateway: Gateway) -> None:
    """A limit without reservations only asks; the commit counts there too."""
    assert await gateway.reserve(501, "user=a", "model=m") == (False, "")
    assert await gateway.left("user=a") == 1_000

    passes, held = await gateway.reserve(500, "user=a", "model=m")

    assert passes
    assert [await gateway.left(each) for each in ("user=a", "model=m")] == [500, 500]
    assert await gateway.commit(held, 300, "user=a", "model=m")
    assert [await gateway.left(each) for each in ("user=a", "model=m")] == [700, 200]


async def test_two_descriptors_on_one_counter_hold_twice(gateway: Gateway) -> None:
    """Each has a hold of its own under the one id."""
    _, held = await gateway.reserve(300, "user=a", "user=a")

    assert await gateway.left("user=a") == 400
    assert await gateway.commit(held, 100, "user=a", "user=a")
    assert await gateway.left("user=a") == 800


async def test_a_reservation_is_extended_by_its_id(gateway: Gateway) -> None:
    """It takes the place of the first."""
    _, held = await gateway.reserve(300, "user=a", seconds=60)

    assert await gateway.reserve(500, "user=a", reservation_id=held) == (True, held)
    assert await gateway.left("user=a") == 500


async def test_a_larger_reservation_than_the_limit_lets_is_denied(gateway: Gateway) -> None:
    """It is never held in part."""
    request = ReserveRequest(domain="llm", amount=101, descriptors=descriptors(("small=a",)))
    answer = ReserveResponse.FromString(await gateway.call("Reserve", request.SerializeToString()))

    assert answer == ReserveResponse(code=OVER, too_large=True)
    assert (await gateway.reserve(100, "small=a"))[0]
    assert gateway.asking.stats.reservations["too_large"] == 1


async def test_shadow_rules_are_not_held_only_settled(gateway: Gateway) -> None:
    """They neither deny nor hold, and count what was used."""
    passes, held = await gateway.reserve(8, "user=a", "watched=w")

    assert passes
    assert await gateway.left("watched=w") == 10
    await gateway.commit(held, 3, "user=a", "watched=w")
    assert await gateway.left("watched=w") == 7


async def test_limits_that_pay_in_turn_are_asked_and_charged(gateway: Gateway) -> None:
    """Nothing of them is held; one of them pays when the stream is settled."""
    assert (await gateway.reserve(100, "layers=l"))[0]
    assert await gateway.reserve(101, "layers=l") == (False, "")
    _, held = await gateway.reserve(8, "layers=l")

    assert not await gateway.commit(held, 8, "layers=l")
    assert await gateway.ask(100, "layers=l")
    await gateway.commit("", 60, "layers=l")
    assert not await gateway.ask(41, "layers=l")


async def test_of_limits_that_pay_in_turn_the_one_that_holds_is_settled(gateway: Gateway) -> None:
    """An overrun stays there; what the first lets nobody hold is held by the next one."""
    _, small = await gateway.reserve(300, "pools=p")
    _, large = await gateway.reserve(450, "pools=p")

    assert await gateway.reserve(551, "pools=p") == (False, "")
    assert await gateway.commit(large, 900, "pools=p")
    assert not await gateway.commit(large, 900, "pools=p")
    assert await gateway.reserve(150, "pools=p", reservation_id=large) == (False, "")
    assert not await gateway.ask(201, "pools=p")
    assert await gateway.commit(small, 0, "pools=p")
    assert await gateway.left("pools=p") == 500
    assert not await gateway.ask(501, "pools=p")


async def test_a_place_is_taken_under_the_id_and_given_back(gateway: Gateway) -> None:
    """A concurrency limit has one place less while the stream lasts."""
    _, held = await gateway.reserve(300, "user=a", "place=p")

    assert await gateway.reserve(300, "user=a", "place=p") == (False, "")
    assert await gateway.commit(held, 100, "user=a", "place=p")
    assert (await gateway.reserve(300, "user=a", "place=p"))[0]


async def test_an_extension_takes_no_second_place(gateway: Gateway) -> None:
    """The stream has its place until it is settled."""
    _, held = await gateway.reserve(300, "place=p")

    assert (await gateway.reserve(300, "place=p", reservation_id=held))[0]
    assert await gateway.commit(held, 100, "place=p")
    assert (await gateway.reserve(300, "place=p"))[0]


async def test_a_place_in_a_list_that_pays_in_turn_is_not_taken(gateway: Gateway) -> None:
    """Nobody would give it back."""
    await gateway.commit("", 10, "mixed=p")

    assert (await gateway.reserve(10, "mixed=p"))[0]
    assert (await gateway.reserve(10, "mixed=p"))[0]


async def test_a_list_that_mixes_places_and_counts_holds_nothing(gateway: Gateway) -> None:
    """So a commit ends no hold, whichever of its limits comes first."""
    for text in ("mixed=q", "places first=q"):
        _, held = await gateway.reserve(2, text)
        assert not await gateway.commit(held, 2, text)


async def test_a_list_without_room_leaves_the_others_to_count(gateway: Gateway) -> None:
    """A commit counts on each list by itself, and on all other limits."""
    await gateway.commit("", 100, "layers=full")
    await gateway.commit("", 10, "layers=full")

    await gateway.commit("", 100, "layers=full", "layers=l", "user=a")

    assert not await gateway.ask(11, "layers=l")
    assert await gateway.left("user=a") == 900


@pytest.mark.parametrize(
    ("texts", "held"),
    [
        (["user=a"], True),
        (["place=p"], True),
        (["model=m", "user=a"], True),
        (["model=m"], False),
        (["watched=w"], False),
        (["layers=l"], False),
        (["pools=p"], True),
        (["unlimited=u"], False),
    ],
)
async def test_it_says_whether_anything_is_held(
    gateway: Gateway, texts: list[str], held: bool
) -> None:
    """A limit without reservations has only been asked."""
    request = ReserveRequest(domain="llm", amount=5, descriptors=descriptors(tuple(texts)))
    answer = ReserveResponse.FromString(await gateway.call("Reserve", request.SerializeToString()))

    assert (answer.code, answer.held) == (OK, held)


async def test_an_amount_of_0_holds_nothing_and_asks(gateway: Gateway) -> None:
    """What is over denies it."""
    assert (await gateway.reserve(0, "user=a"))[0]
    await gateway.commit("", 1_001, "user=a")
    assert await gateway.reserve(0, "user=a") == (False, "")


@pytest.mark.parametrize(
    ("method", "request_", "message"),
    [
        (
            "Reserve",
            ReserveRequest(domain="llm", amount=MAX_ADDEND + 1),
            "amount is 4294967296: at most 4294967295 hits are counted at once",
        ),
        (
            "Commit",
            CommitRequest(domain="llm", actual_amount=MAX_ADDEND + 1),
            "actual_amount is 4294967296: at most 4294967295 hits are counted at once",
        ),
        ("Reserve", ReserveRequest(amount=1), "domain is empty: name the domain"),
        (
            "Reserve",
            ReserveRequest(
                domain="llm", amount=1, reservation_id="x", descriptors=descriptors(("user=a",))
            ),
            "reservation_id is none: send one that Reserve has answered",
        ),
    ],
)
async def test_what_cannot_be_reserved_is_refused(
    gateway: Gateway, method: str, request_: ReserveRequest | CommitRequest, message: str
) -> None:
    """INVALID_ARGUMENT says what is wrong."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await gateway.call(method, request_.SerializeToString())

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert message in str(refused.value.details())


async def test_reservations_can_be_switched_off(tmp_path: Path) -> None:
    """With --no-reservations the methods answer UNIMPLEMENTED, and clients know what to do."""
    asking = Asking(tmp_path, RULES, settings=Settings(no_reservations=True))

    answer = await asking.service.reservations.call("Reserve", b"")

    assert isinstance(answer, Refusal)
    assert answer.code is StatusCode.UNIMPLEMENTED


async def test_all_limits_can_take_reservations(tmp_path: Path) -> None:
    """With --reservations also those of files that do not say it."""
    rules = (
        "domain: llm\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 9}}]"
    )
    asking = Asking(tmp_path, rules, settings=Settings(reservations=True))
    request = ReserveRequest(domain="llm", amount=9, descriptors=descriptors(("user=a",)))

    codes = []
    for _ in range(2):
        answer = await asking.service.reservations.call("Reserve", request.SerializeToString())
        assert isinstance(answer, bytes)
        codes.append(ReserveResponse.FromString(answer).code)

    assert codes == [OK, OVER]


async def test_policy_answers_where_the_store_is_away(tmp_path: Path) -> None:
    """A reservation has no id then; a commit with none is a report."""
    asking = Asking(tmp_path, RULES, store=Away())
    request = ReserveRequest(domain="llm", amount=9, descriptors=descriptors(("user=a",)))

    answer = await asking.service.reservations.call("Reserve", request.SerializeToString())

    assert isinstance(answer, bytes)
    assert ReserveResponse.FromString(answer) == ReserveResponse(code=OK)


async def test_overrides_hold_for_reservations_as_they_stand(tmp_path: Path) -> None:
    """A ban denies what is reserved and stops no settle; exempt callers neither hold nor count."""
    asking = Asking(tmp_path, RULES)
    gateway = Direct(asking)
    held = await gateway.reserve(600, "user=a")
    ban = override(BAN, "user=a", domain="llm")
    asking.service.overrides.add([ban])

    assert await gateway.reserve(1, "user=a") == ""
    assert await gateway.commit(held, 200, "user=a")
    asking.service.overrides.remove([ban])
    assert await gateway.reserve(801, "user=a") == ""
    assert await gateway.reserve(800, "user=a")

    exemption = override(EXEMPT, "user=b", domain="llm")
    asking.service.overrides.add([exemption])
    exempt = await gateway.reserve(5_000, "user=b")
    assert exempt
    assert not await gateway.commit(exempt, 5_000, "user=b")

    asking.service.overrides.add([ban])
    await gateway.commit("", 100, "user=a", "user=b")
    asking.service.overrides.remove([ban, exemption])
    assert await gateway.reserve(101, "user=a") == ""
    assert await gateway.reserve(1_000, "user=b")


class _Losing(Away):
    """A store that counts, and whose answers to settles get lost, but for every third."""

    def __init__(self) -> None:
        self.memory = MemoryStore(1_000, Stats(), Health())
        self.settled = 0

    def charge(
        self,
        requests: Sequence[Sequence[Hit]],
        done: Done,
        wanted: Wanted = always,
        deadline_us: int = NEVER,
        priority: int = 0,
    ) -> None:
        found: list[Settled] = []
        self.memory.charge(requests, found.extend, wanted, deadline_us, priority)
        hold = requests[0][0].receipt
        if isinstance(hold, Hold) and hold.settles:
            self.settled += 1
            if self.settled % 3:
                found = [judge(hits, [None] * len(hits)) for hits in requests]
        done(found)


async def test_a_settle_whose_answer_is_lost_is_sent_again_and_counts_once(tmp_path: Path) -> None:
    """It is sent until an answer comes; what was counted already is not counted again."""
    asking = Asking(tmp_path, RULES, store=_Losing())
    gateway = Direct(asking)
    held = await gateway.reserve(600, "user=a")

    await gateway.commit(held, 200, "user=a")

    assert not await gateway.reserve(801, "user=a")
    assert await gateway.reserve(800, "user=a")


@pytest.mark.parametrize(("text", "left"), [("user=a", [910]), ("pools=p", [1_000, 400])])
async def test_a_report_whose_answer_is_lost_counts_once(
    tmp_path: Path, text: str, left: list[int]
) -> None:
    """Nobody remembers it, so it is not sent again."""
    asking = Asking(tmp_path, RULES, store=_Losing())
    report = RateLimitRequest(domain="llm", hits_addend=90, descriptors=descriptors((text,)))

    await asking.service.reservations.call("Report", report.SerializeToString())

    gateway = Direct(asking)
    assert all([await gateway.reserve(hits, text) for hits in left])


async def test_reserving_holds_nobody_up(tmp_path: Path) -> None:
    """However many reservations come at once, two are made in a round of the event loop at most."""
    ends = Ends(Asking(tmp_path, RULES))
    message = ReserveRequest(domain="llm", descriptors=descriptors(("user=a",)), amount=1)
    call = message.SerializeToString()
    path = f"/{RESERVING_SERVICE}/Reserve"
    come(
        ends.served,
        b"".join(ends.client.headers(path=path) + ends.client.data(call) for _ in range(40)),
        0,
    )
    answered: list[int] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while sum(answered) < 40:
            await asyncio.sleep(0)
            answered.append(ends.wire.kinds().count(FrameType.DATA))

    assert max(answered) <= 2

"""Rules over xDS: what a management server may send, however odd, and what it is told of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from ratelimit_service.eventloop.slices import SLICE
from ratelimit_service.observability.health import Phase
from ratelimit_service.processes.pipes import framed
from ratelimit_service.rules import from_xds
from ratelimit_service.rules.load import LoadPolicy, Rules
from ratelimit_service.rules.sources import source_of
from ratelimit_service.rules.watch import watched
from ratelimit_service.settings import Settings
from tests.rules.following import Client, following
from tests.servers.management import ManagementServer, config
from tests.waiting import until


@pytest.fixture
def server() -> Iterator[ManagementServer]:
    server = ManagementServer().start()
    yield server
    server.stop()


async def test_no_domain_any_more(server: ManagementServer) -> None:
    """Where rules are needed an empty snapshot ends what is served, until another comes."""
    client = Client(server)
    client.rules = Rules(
        source_of(client.settings),
        stats=client.stats,
        health=client.health,
        policy=LoadPolicy(needed=True),
    )
    client.health.enter(Phase.SERVING)
    client.rules.load()
    async with watched(client.rules):
        serving = [client.health.serving]
        for number, resources in enumerate(([config("edge", "user")], [], [config("edge", "b")])):
            await client.send(server, str(number), *resources)
            serving.append(client.health.serving)

    assert serving == [False, True, False, True]


async def test_bad_resource(server: ManagementServer) -> None:
    """One bad resource keeps its domain as it was and is named in the NACK; others take effect."""
    async with following(server) as client:
        await client.send(server, "1", config("one", "a"), config("two", "a"))
        answer = await client.send(server, "2", config("one", ""), config("two", "b"))

        assert client.domains == {"one": ["a"], "two": ["b"]}
        assert answer.version_info == "1"
        assert answer.error_detail.message == (
            f"{server.url}/one@2: key is missing or empty: every descriptor needs one [no_key]"
        )
        assert "one@2" in client.health.faults["rules"]
        answer = await client.send(server, "3", config("one", "c"), config("two", "b"))
        assert client.domains == {"one": ["c"], "two": ["b"]}
        assert answer.version_info == "3"
        assert client.health.faults == {}


async def test_empty_snapshot(server: ManagementServer) -> None:
    """A snapshot without resources deletes every rule: no request is limited any more."""
    async with following(server) as client:
        await client.send(server, "1", config("one", "a"))
        answer = await client.send(server, "2")

        assert answer.version_info == "2"
        assert client.domains == {}
        assert not client.rules.snapshot.never_loaded("one")
        assert client.health.faults == {}


async def test_empty_from_the_start(server: ManagementServer) -> None:
    """A server without rules is no server that is away."""
    async with following(server) as client:
        assert client.rules.snapshot.never_loaded("one")
        assert "no rules have come from xds://" in client.health.faults["rules"]
        await client.send(server, "1")

        assert client.rules.begun
        assert not client.rules.snapshot.never_loaded("one")
        assert client.health.faults == {}


async def test_resource_that_goes(server: ManagementServer) -> None:
    """A resource that is not in a snapshot is deleted, and nothing else."""
    async with following(server) as client:
        await client.send(server, "1", config("one", "a"), config("two", "a"))
        await client.send(server, "2", config("two", "a"))

        assert client.domains == {"two": ["a"]}
        assert client.health.faults == {}


async def test_bytes_that_are_no_resource(server: ManagementServer) -> None:
    """What cannot be decoded may be any resource, so those that are missing stay."""
    async with following(server) as client:
        await client.send(server, "1", config("one", "a"), config("two", "a"))
        answer = await client.send(server, "2", b"\xff\xff", config("two", "b"))

        assert client.domains == {"one": ["a"], "two": ["b"]}
        assert "resource 1 of version 2" in answer.error_detail.message
        await client.send(server, "3", config("two", "b"))
        assert client.domains == {"two": ["b"]}
        assert client.health.faults == {}


async def test_resources_that_contradict(server: ManagementServer) -> None:
    """Two resources of one domain are merged; where they contradict, what held before stays."""
    async with following(server) as client:
        await client.send(server, "1", config("one", "a"), config("one", "b", name="more"))
        assert client.domains == {"one": ["b", "a"]}
        answer = await client.send(
            server, "2", config("one", "a", "c"), config("one", "a", name="more")
        )

        assert client.domains == {"one": ["b", "a"]}
        assert "merge the two [duplicate]" in answer.error_detail.message
        left = client.rules.leave()
        assert left is not None
        again = Client(server)
        again.rules.load(left)
        assert again.domains == client.domains
        assert again.health.faults == {}


async def test_server_that_resends_at_once(server: ManagementServer) -> None:
    """A NACK is answered by what was refused; it is refused again, once a second at most."""
    bad = config("one", "")
    server.answer = lambda conversation, _: conversation.send("1", bad)
    async with following(server) as client:
        conversation = await asyncio.to_thread(server.conversation)
        begun = asyncio.get_running_loop().time()
        conversation.send("1", bad)
        await until(lambda: len(conversation.asked) >= 4)

        took = asyncio.get_running_loop().time() - begun
        assert all(each.error_detail.message for each in conversation.asked[1:])
        assert len(conversation.asked) - 2 <= took
        server.answer = lambda *_: None
        await client.send(server, "2", config("one", "a"))
        assert client.domains == {"one": ["a"]}


async def test_snapshots_that_come_too_fast(server: ManagementServer) -> None:
    """Of snapshots that nobody can apply in time the newest counts; none is half in force."""
    async with following(server) as client:
        conversation = await asyncio.to_thread(server.conversation)
        nonce = ""
        for number in range(100):
            nonce = conversation.send(str(number), config("one", f"k{number}"))
        answer = await asyncio.to_thread(conversation.answer_to, nonce)

        assert answer.version_info == "99"
        assert client.domains == {"one": ["k99"]}
        assert len(conversation.asked) < 50
        assert client.health.faults == {}


async def test_server_that_ends_streams(server: ManagementServer) -> None:
    """It connects again and begins anew: neither version nor nonce are of the last stream."""
    async with following(server) as client:
        await client.send(server, "7", config("one", "a"))
        server.conversation().end()
        again = await asyncio.to_thread(server.conversation, 1)
        await until(lambda: again.asked)

        assert (again.asked[0].version_info, again.asked[0].response_nonce) == ("", "")
        assert client.domains == {"one": ["a"]}
        answer = await client.send(server, "1", config("one", "b"))
        assert answer.version_info == "1"
        assert client.domains == {"one": ["b"]}


async def test_server_that_speaks_of_something_else(server: ManagementServer) -> None:
    """Resources of another type, and bytes that are nothing, neither harm nor are answered."""
    async with following(server) as client:
        conversation = await asyncio.to_thread(server.conversation)
        conversation.send("1", config("one", "a"), type_url="type.googleapis.com/envoy.Listener")
        conversation.to_send.put(b"\xff\xff\xff")
        again = await asyncio.to_thread(server.conversation, 1)
        await client.send(server, "2", config("one", "b"))

        assert again is server.conversation()
        assert len(conversation.asked) == 1
        assert client.domains == {"one": ["b"]}


async def test_server_that_goes_on_about_something_else(
    server: ManagementServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Resources of other types are said once in a while, and however long their types are."""
    async with following(server) as client:
        conversation = await asyncio.to_thread(server.conversation)
        for number in range(50):
            conversation.send("1", type_url=f"{number}" + "x" * 100_000)
        await client.send(server, "2", config("one", "b"))

    answer = [each.message for each in caplog.records if "nobody has asked" in each.message]
    assert len(answer) == 1
    assert len(answer[0]) < 500


async def test_version_that_is_long(
    server: ManagementServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A long version is acknowledged as it is, and neither kept with each resource nor logged."""
    caplog.set_level("INFO")
    version = "7" * 100_000
    async with following(server) as client:
        answer = await client.send(server, version, *(config(f"d{at}", "a") for at in range(20)))
        files = client.rules.source.read().files

        assert answer.version_info == version
        assert len(client.domains) == len(files) == 20
        assert max(map(len, files.values())) < 500
        assert max(len(each.message) for each in caplog.records) < 500


async def test_name_that_is_long(server: ManagementServer) -> None:
    """A resource whose name has more than 1,024 characters is refused, and others take effect."""
    async with following(server) as client:
        answer = await client.send(server, "1", config("one", "a"), config("n" * 2_000, "a"))

        assert client.domains == {"one": ["a"]}
        assert "its name has 2,000 characters: at most 1,024" in answer.error_detail.message


async def test_more_problems_than_are_told(
    server: ManagementServer, caplog: pytest.LogCaptureFixture
) -> None:
    """However much is wrong, the server hears what, and the client lives on."""
    async with following(server) as client:
        bad = [config(f"{number}-" + "x" * 900, "") for number in range(2_500)]
        answer = await client.send(server, "1", *bad)
        lines = answer.error_detail.message.splitlines()

        assert len(lines) == 151
        assert lines[-1] == "2500 problems in all"
        assert "1500 more problems in the rules" in caplog.text
        assert len(server.conversations) == 1
        answer = await client.send(server, "2", config("one", "a"))
        assert answer.version_info == "2"


async def test_many_resources_are_read_some_at_a_time() -> None:
    """What the client has sent is taken in a few dozen resources at a time, though all is there."""
    source = source_of(Settings(rules="xds://127.0.0.1:1"))
    assert isinstance(source, from_xds.FromXds)
    stream, rounds = asyncio.StreamReader(), 0
    head = {"kind": "snapshot", "stamp": 1, "version": "1", "resources": 1_000, "unread": ""}
    stream.feed_data(framed(json.dumps(head).encode()))
    for number in range(1_000):
        stream.feed_data(framed(b"%d" % number) + framed(b"{}"))
    # A whole client would send at its own pace.
    taking = asyncio.ensure_future(source._message(stream))
    while not taking.done():
        await asyncio.sleep(0)
        rounds += 1

    assert rounds >= 1_000 // SLICE
    assert len(source.read().files) == 1_000


async def test_large_snapshot(server: ManagementServer) -> None:
    """Ten thousand descriptors are in force, and nothing holds the event loop up meanwhile."""
    keys = [f"key{number}" for number in range(10_000)]
    async with following(server) as client:
        answer = await client.send(server, "1", config("one", *keys))

        assert answer.version_info == "1"
        assert len(client.domains["one"]) == 10_000

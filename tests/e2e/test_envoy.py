"""A real Envoy asks, the service answers from rules, and Envoy does as told."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.conftest import need_envoy, routed_config
from tests.servers.envoy import Envoy, ratelimit_filter, shipped_config
from tests.servers.process import free_port, wait_until
from tests.servers.redis import RedisServer
from tests.servers.service import ServiceProcess
from tests.servers.upstream import Upstream
from tests.waiting import PATIENCE_SECONDS

RULES = Path(__file__).parents[2] / "rules"


def statuses(envoy: Envoy, path: str, times: int, **headers: str) -> list[int]:
    return [envoy.get(path, **headers).status for _ in range(times)]


def test_limited(envoy: Envoy) -> None:
    """Above the limit Envoy answers 429 and marks it; another user is not concerned."""
    answers = [envoy.get("/user", x_user="bob") for _ in range(3)]

    assert [answer.status for answer in answers] == [200, 200, 429]
    assert "x-envoy-ratelimited" not in answers[1].headers
    assert answers[2].headers["x-envoy-ratelimited"] == "true"
    assert envoy.get("/user", x_user="carol").status == 200


def test_ratelimit_headers(envoy: Envoy) -> None:
    """Envoy's x-ratelimit headers show limit, window, name, remaining and reset."""
    first = envoy.get("/user", x_user="dave").headers
    tenant = envoy.get("/two", x_tenant="acme").headers

    assert first["x-ratelimit-limit"] == '2, 2;w=31536000;name="per-user"'
    assert first["x-ratelimit-remaining"] == "1"
    assert 1 <= int(first["x-ratelimit-reset"]) <= 31_536_000
    assert tenant["x-ratelimit-limit"] == "5, 5;w=63072000"


def test_answers_that_rules_describe(envoy: Envoy) -> None:
    """Headers and body of a denial reach the caller as the rule has them, each once."""
    allowed, denied = [envoy.get("/described", x_user="bob") for _ in range(2)]

    assert (allowed.status, denied.status) == (200, 429)
    assert allowed.headers["ratelimit-policy"] == '"yearly";q=1;w=31536000'
    assert allowed.headers["ratelimit"].startswith('"yearly";r=0;t=')
    assert denied.headers["content-type"] == "application/problem+json"
    assert denied.headers["ratelimit-policy"] == '"yearly";q=1;w=31536000'
    problem = json.loads(denied.text)
    assert problem["violated-policies"] == ["yearly"]
    assert int(denied.headers["retry-after"]) == problem["retry_after"]


def test_grpc_callers_read_text(envoy: Envoy) -> None:
    """A gRPC caller gets the text as its status message, and its answer stays gRPC."""
    _, denied = [
        envoy.get("/said", x_user="bob", content_type="application/grpc") for _ in range(2)
    ]

    assert denied.status == 200
    assert denied.headers["content-type"] == "application/grpc"
    assert denied.headers["grpc-message"].startswith("Come back later. The limit is 1 in 1 year.")
    assert denied.headers["grpc-status"] == "14"


def test_two_descriptors(envoy: Envoy) -> None:
    """One descriptor over its limit denies the request and leaves the other uncharged."""
    assert statuses(envoy, "/two", 3, x_user="erin", x_tenant="two") == [200, 200, 429]

    after = envoy.get("/two", x_tenant="two")

    assert after.headers["x-ratelimit-remaining"] == "2"


def test_shadow_mode(envoy: Envoy) -> None:
    """A rule in shadow mode denies nobody."""
    assert statuses(envoy, "/trial", 3, x_user="bob") == [200, 200, 200]


def test_replaces(envoy: Envoy) -> None:
    """A request that also meets the replacing rule is limited by that alone."""
    assert statuses(envoy, "/vip", 3, x_user="frank") == [200, 200, 429]
    assert statuses(envoy, "/vip", 5, x_user="frank", x_vip="frank") == [200] * 4 + [429]


def test_override(envoy: Envoy) -> None:
    """A route's own limit holds where no rule matches."""
    answers = [envoy.get("/override", x_user="bob") for _ in range(4)]

    assert [answer.status for answer in answers] == [200, 200, 200, 429]
    assert answers[0].headers["x-ratelimit-limit"] == "3, 3;w=31536000"


def test_addend(envoy: Envoy) -> None:
    """A cost from typed_per_filter_config is charged whole or not at all."""
    costs = ["4", "4", "4", "2", "1"]

    codes = [envoy.get("/cost", x_user="bob", x_cost=cost).status for cost in costs]

    assert codes == [200, 200, 429, 200, 429]


def budget_is(envoy: Envoy, remaining: int) -> bool:
    return envoy.get("/budget", x_user="bob").headers["x-ratelimit-remaining"] == str(remaining)


def test_token_budget(envoy: Envoy) -> None:
    """A cost reported after the response is charged then, and denies from the next request on."""
    for used in (300, 600, 900, 1200):
        answer = envoy.get("/budget", x_user="bob", answer_x_tokens="300")
        assert answer.status == 200
        # A request without answer-x-tokens only looks.
        wait_until(partial(budget_is, envoy, max(0, 1000 - used)), f"{used} tokens to be charged")

    assert envoy.get("/budget", x_user="bob", answer_x_tokens="300").status == 429


def test_shipped_configuration(tmp_path: Path) -> None:
    """docker/envoy.yaml before rules/ limits a curl as rules/demo.yaml says."""
    need_envoy()
    service = ServiceProcess(tmp_path, "--rules", str(RULES))
    service.start()
    config = shipped_config()
    ratelimit_filter(config)["timeout"] = "5s"
    envoy = Envoy(config, tmp_path, {"ratelimit": service.grpc_port})
    envoy.start()

    answers = [envoy.get("/", x_user="alice") for _ in range(6)]
    while answers[-1].status == 200 and len(answers) < 11:  # a minute may have begun meanwhile
        answers.append(envoy.get("/", x_user="alice"))

    envoy.kill()
    service.kill()
    assert [answer.status for answer in answers] == [200] * (len(answers) - 1) + [429]
    assert answers[0].text == "allowed\n"


@pytest.mark.parametrize("size", [0, 100])
def test_small_header_table(
    service: ServiceProcess, upstream: Upstream, tmp_path: Path, size: int
) -> None:
    """An Envoy that allows a small header table, or none, gets every answer."""
    need_envoy()
    config = routed_config()
    ratelimit_filter(config)["failure_mode_deny"] = True
    (cluster,) = (
        each for each in config["static_resources"]["clusters"] if each["name"] == "ratelimit"
    )
    (options,) = cluster["typed_extension_protocol_options"].values()
    options["explicit_http_config"]["http2_protocol_options"] = {"hpack_table_size": size}
    ports = {"ratelimit": service.grpc_port, "backend": upstream.port}
    envoy = Envoy(config, tmp_path, ports)
    envoy.start()

    found = statuses(envoy, "/user", 5, x_user=f"table-{size}")

    envoy.kill()
    assert found == [200, 200, 429, 429, 429]


@pytest.mark.parametrize(("deny", "status"), [(False, 200), (True, 500)])
def test_service_away(upstream: Upstream, tmp_path: Path, deny: bool, status: int) -> None:
    """Without the service Envoy's failure_mode_deny decides."""
    need_envoy()
    config = routed_config()
    ratelimit_filter(config)["failure_mode_deny"] = deny
    envoy = Envoy(config, tmp_path, {"ratelimit": free_port(), "backend": upstream.port})
    envoy.start()

    answer = envoy.get("/user", x_user="bob")

    envoy.kill()
    assert answer.status == status


def test_redis_killed(
    own_redis: RedisServer, rules: Path, upstream: Upstream, tmp_path: Path
) -> None:
    """Requests pass while Redis is dead, under the policy `open`, and are counted again after."""
    need_envoy()
    service = ServiceProcess(tmp_path, "--rules", str(rules), "--store", own_redis.url)
    service.start()
    ports = {"ratelimit": service.grpc_port, "backend": upstream.port}
    envoy = Envoy(routed_config(), tmp_path, ports)
    envoy.start()
    assert statuses(envoy, "/user", 3, x_user="bob") == [200, 200, 429]

    own_redis.kill()

    wait_until(lambda: envoy.get("/user", x_user="bob").status == 200, "the policy to allow")
    assert statuses(envoy, "/user", 5, x_user="bob") == [200] * 5
    wait_until(lambda: "\nstore: " in service.get("/healthcheck").text, "the fault to be told")
    own_redis.start()
    wait_until(lambda: envoy.get("/user", x_user="bob").status == 429, "bob to be limited again")
    wait_until(lambda: "recovered: store" in service.log, "it to be said")
    envoy.kill()
    service.kill()


def test_concurrency(envoy: Envoy, upstream: Upstream) -> None:
    """Of 30 requests that overlap three reach the upstream, and then three of the next 30."""
    most_before = upstream.most_at_once
    assert most_before <= 3
    with ThreadPoolExecutor(30) as pool:
        for _ in range(3):
            upstream.hold()
            asked = [pool.submit(envoy.get, "/checkout", x_user="kim") for _ in range(30)]
            done = as_completed(asked, timeout=PATIENCE_SECONDS)
            denied = [next(done).result().status for _ in range(27)]
            wait_until(lambda: upstream.under_way == 3, "three requests at the upstream")
            upstream.let_go()
            allowed = [each.result().status for each in done]

            assert denied == [429] * 27
            assert allowed == [200] * 3
            wait_until(lambda: _free(envoy) == 3, "the leases that Envoy gives back")

        swarm = [pool.submit(envoy.get, "/checkout", x_user="kim") for _ in range(600)]
        codes = {each.result().status for each in swarm}

    assert codes == {200, 429}
    assert upstream.most_at_once <= 3


def _free(envoy: Envoy) -> int:
    """The leases that are free, told by a request that has one itself while it is under way."""
    answer = envoy.get("/checkout", x_user="kim")
    return int(answer.headers["x-ratelimit-remaining"]) + 1 if answer.status == 200 else 0

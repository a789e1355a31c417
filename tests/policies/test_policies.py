"""The policies that ship are sound, do what their cases say, and hold behind a real Envoy."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from ratelimit_service.cli.results import FORMATS
from ratelimit_service.rule_lab.simulation.cases import read_cases
from ratelimit_service.rule_lab.simulation.rule_test_run import RuleTestRun
from ratelimit_service.rules.lint import lint
from tests.e2e.conftest import need_envoy
from tests.policies.shipped import POLICIES, TOP, Client, Policy, configured, copied
from tests.servers.envoy import COMMAND, Envoy
from tests.servers.process import wait_until
from tests.servers.service import ServiceProcess
from tests.servers.upstream import Upstream

BOOKS = sorted(
    rules
    for rules in (TOP / "examples" / "books").glob("*.yaml")
    if not rules.name.endswith(".test.yaml")
)
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)


@every_policy
def test_rules_are_sound(policy: Policy) -> None:
    """The rule file lints without a problem and without a hint, and its domain has its name."""
    assert lint([policy.rules]).problems == ()
    assert yaml.safe_load(policy.rules.read_text())["domain"] == policy.name


@every_policy
def test_cases_pass(policy: Policy) -> None:
    """Every case passes, and every rule is met by one."""
    test_run = RuleTestRun()
    results = list(test_run.run(read_cases(policy.cases)))

    assert [line for line in FORMATS["text"](results) if not line.endswith("passed")] == []
    assert test_run.coverage.uncovered == ()


@pytest.mark.parametrize("rules", BOOKS, ids=lambda rules: rules.stem)
def test_limits_of_the_books(rules: Path) -> None:
    """Each example of the books lints, its cases pass, and they meet every rule of it."""
    assert lint([rules]).problems == ()
    test_run = RuleTestRun()
    results = list(test_run.run(read_cases(rules.with_suffix(".test.yaml"))))

    assert [line for line in FORMATS["text"](results) if not line.endswith("passed")] == []
    assert test_run.coverage.uncovered == ()


def test_the_page_lists_the_books() -> None:
    """docs/policies.md has a line for each example of the books that leads to its file."""
    page = (TOP / "docs" / "policies.md").read_text()

    assert re.findall(r"\(\.\./examples/books/([\w-]+)\.yaml\)", page) == [
        rules.stem for rules in BOOKS
    ]


def test_the_page_lists_them() -> None:
    """docs/policies.md has a section for each policy that leads to its directory."""
    page = (TOP / "docs" / "policies.md").read_text()

    assert re.findall(
        r"^\| \[[\w-]+\]\(\.\./examples/policies/([\w-]+)/\)", page, re.MULTILINE
    ) == [policy.name for policy in POLICIES]


Enforced = Callable[[Client], None]


def addresses(client: Client) -> None:
    """60 for an address; a /64 of IPv6 is one; the office is not limited."""
    client.spend(55, remote_address="192.0.2.50")
    assert 5 <= client.passed("/", 66, x_forwarded_for="192.0.2.50") <= 65
    client.spend(60, remote_address="2001:db8:5:6::1")
    assert client.passed("/", 62, x_forwarded_for="2001:db8:5:6:ffff::2") <= 60
    assert [client.ask("/", x_forwarded_for="198.51.100.9") for _ in range(70)] == [200] * 70


def api_keys(client: Client) -> None:
    """60 for a key; without one five for the address."""
    client.spend(55, api_key="k1")
    assert 5 <= client.passed("/", 66, x_api_key="k1") <= 65
    assert client.ask("/", x_api_key="k2") == 200
    assert 5 <= client.passed("/", 11, x_forwarded_for="192.0.2.60") <= 10
    assert client.ask("/", x_api_key="k3", x_forwarded_for="192.0.2.60") == 200


def bursts(client: Client) -> None:
    """20 in a second, and another client has the same."""

    def denied() -> bool:
        client.spend(20, client="acme")
        return client.ask("/", x_client="acme") == 429

    wait_until(denied, "a second in which acme has spent all")
    assert client.ask("/", x_client="globe") == 200


def elastic(client: Client) -> None:
    """A user may have more than the share, until all together have spent what is spare."""
    assert [client.ask("/", x_user="alice") for _ in range(110)] == [200] * 110

    def held_to_the_share() -> bool:
        client.spend(8_000, spare="service")
        client.spend(100, user="alice")
        denied = client.ask("/", x_user="alice") == 429
        return denied and client.ask("/", x_user="bob") == 200

    wait_until(held_to_the_share, "a minute in which all together have spent what is spare")


def exports(client: Client) -> None:
    """Three at a time: what has ended is free again, what is held is not."""
    assert [client.ask("/exports", x_user="alice") for _ in range(10)] == [200] * 10
    client.spend(3, user="bob")
    assert client.ask("/exports", x_user="bob") == 429
    assert [client.ask("/exports", x_user="alice") for _ in range(10)] == [200] * 10


def github(client: Client) -> None:
    """60 for an address, five points for a write; leases of what has ended are free again."""
    assert 60 <= client.passed("/", 121, x_forwarded_for="192.0.2.7") <= 120
    assert client.ask("/", x_forwarded_for="192.0.2.8") == 200
    client.spend(50, user_at_once="alice")
    assert [client.ask("/", x_user="alice") for _ in range(55)] == [200] * 55
    client.spend(850, user_points="bob")
    assert client.passed("/", 200, "POST", x_user="bob") >= 10


def llm(client: Client) -> None:
    """What an answer costs is charged after it, and denies the next request."""
    caller = {"x_tier": "1", "x_organization": "acme", "x_model": "large"}
    assert client.ask("/v1/chat", **caller, answer_x_total_tokens="900001") == 200
    wait_until(lambda: client.ask("/v1/chat", **caller) == 429, "the tokens to be charged")
    assert client.ask("/v1/chat", **{**caller, "x_model": "small"}) == 200


def budgets(client: Client) -> None:
    """The reserve pays when the tier is used up, and gets back what was not needed."""
    caller = {"x_org": "acme", "x_team": "web", "x_user": "ann"}
    client.spend(100_000, org="acme", team="app", user="eve")  # all credits
    ask = partial(client.ask, "/v1/chat", **caller)
    assert ask(x_estimate="1000") == 200
    assert ask(x_estimate="5000", answer_x_cost_unused="5000") == 200
    wait_until(lambda: ask(x_estimate="5000") == 200, "the reserve to have its hits back")
    assert ask(x_estimate="5000") == 429


def shopify(client: Client) -> None:
    """40 calls at once; a query gets back what it has not cost."""
    caller = {"x_app": "printer", "x_store": "hats"}
    assert 40 <= client.passed("/admin/api/orders.json", 81, **caller) <= 80
    query = partial(client.ask, "/admin/api/graphql.json", **caller, x_query_cost="1500")
    assert query(answer_x_cost_unused="1500") == 200
    wait_until(lambda: query() == 200, "the points to be given back")
    assert query() == 429


def business_hours(client: Client) -> None:
    """Two hundred exports an hour at most, or ten; another customer has the same."""
    client.spend(190, exporter="acme")
    assert client.passed("/exports", 211, x_customer="acme") <= 210
    assert client.ask("/exports", x_customer="globe") == 200


def chat(client: Client) -> None:
    """20 messages of a viewer, and one a second in each channel; a moderator has neither limit."""
    viewer = {"x_role": "viewer", "x_user": "alice"}
    send = partial(client.ask, "/chat/messages")
    assert [send(**viewer, x_channel=f"c{number}") for number in range(20)] == [200] * 20
    assert send(**viewer, x_channel="another") == 429
    assert client.passed("/chat/messages", 20, **{**viewer, "x_user": "bob"}, x_channel="go") < 20
    moderator = {"x_role": "moderator", "x_user": "carol"}
    assert [send(**moderator, x_channel="go") for _ in range(25)] == [200] * 25


def posts(client: Client) -> None:
    """300 posts and reposts together; reading is not limited."""
    client.spend(280, poster="alice")
    assert [client.ask("/api/posts", "POST", x_user="alice") for _ in range(10)] == [200] * 10
    assert client.passed("/api/reposts", 11, "POST", x_user="alice") == 10
    assert client.ask("/api/posts", x_user="alice") == 200


def documents(client: Client) -> None:
    """60 writes of a user; reads and other users have limits of their own."""
    alice = {"x_project": "atlas", "x_user": "alice"}
    assert 60 <= client.passed("/v1/documents/7", 121, "POST", **alice) <= 120
    assert client.ask("/v1/documents/7", **alice) == 200
    assert client.ask("/v1/documents/7", "POST", **{**alice, "x_user": "bob"}) == 200


def weekly_rewards(client: Client) -> None:
    """One a week for each device."""
    assert 1 <= client.passed("/rewards/weekly", 3, x_device="a1b2") <= 2
    assert client.ask("/rewards/weekly", x_device="c3d4") == 200


def failed_cards(client: Client) -> None:
    """Payments cost nothing until they fail; after five failures the card is denied."""
    pay = partial(client.ask, "/payments", "POST", x_card="4242", x_customer="alice")
    assert [pay() for _ in range(12)] == [200] * 12
    for _ in range(5):
        assert pay(answer_x_payment_failed="1") == 200
    wait_until(lambda: pay() == 429, "the failures to be charged")
    assert pay(x_card="5555") == 200


def plans(client: Client) -> None:
    """The plan's value decides, and a contract in Envoy's configuration goes before."""
    client.spend(90, plan="free", customer="alice")
    assert 10 <= client.passed("/", 111, x_plan="free", x_customer="alice") <= 110
    assert 60 <= client.passed("/", 121, x_plan="pro", x_customer="acme") <= 120
    assert 20 <= client.passed("/", 41, x_plan="enterprise", x_customer="initech") <= 40
    enterprise = partial(client.ask, "/", x_plan="enterprise", x_customer="umbrella")
    assert [enterprise() for _ in range(50)] == [200] * 50


def layers(client: Client) -> None:
    """120 requests of a user, and then another one's."""
    client.spend(100, user="alice")
    assert 20 <= client.passed("/shop/cart", 141, x_user="alice") <= 140
    assert client.ask("/shop/cart", x_user="bob") == 200


def login(client: Client) -> None:
    """Five for an account from one address, more from another; twenty for a household."""
    guess = partial(client.ask, "/login", "POST")
    assert client.passed("/login", 6, "POST", x_account="alice", x_forwarded_for="192.0.2.1") == 5
    assert guess(x_account="alice", x_forwarded_for="198.51.100.1") == 200
    for number in range(20):
        house = f"2001:db8:1:2::{number:x}"
        assert guess(x_account=f"user-{number}", x_forwarded_for=house) == 200
    assert guess(x_account="bob", x_forwarded_for="2001:db8:1:2:ffff::1") == 429
    assert guess(x_account="bob", x_forwarded_for="2001:db8:1:3::1") == 200


def mcp(client: Client) -> None:
    """Twenty calls of a tool, which Envoy reads from the body; other requests have no tool."""

    def call(agent: str, tool: str) -> int:
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool}}
        return client.ask(
            "/mcp",
            "POST",
            json.dumps(call),
            x_agent=agent,
            content_type="application/json",
            accept="application/json, text/event-stream",
        )

    assert [call("coder", f"delete_{what}") for what in ("file", "branch", "page")] == [200] * 3
    assert call("coder", "delete_file") == 429
    assert call("coder", "search") == 200
    assert call("writer", "delete_file") == 200
    assert client.ask("/mcp", x_agent="coder") == 200


def money(client: Client) -> None:
    """The rest of an estimate is given back, if the answer says its cost and was admitted."""
    ask = partial(client.ask, "/v1/chat", x_team="web", x_agent="coder")
    client.spend(100_000, team="web", agent="coder")
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 50_000}  # 3 dollars
    answer = json.dumps({"model": "large", "usage": usage})
    assert ask(x_estimate="100000", answer_body=answer) == 200
    wait_until(lambda: ask(x_estimate="70000") == 200, "the rest to be given back")
    assert [ask(x_estimate="1", answer_body=answer) for _ in "12"] == [429, 429]

    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search"}}
    tool = partial(
        client.ask,
        "/mcp",
        "POST",
        json.dumps(call),
        x_team="web",
        x_agent="writer",
        content_type="application/json",
        accept="application/json, text/event-stream",
    )
    assert tool() == 200
    client.spend(49_900, team="web", agent="writer", tool="search")
    assert tool() == 429


def sign_ups(client: Client) -> None:
    """Five for an address, more for a campus, none with throwaway mail."""
    caller = {"x_forwarded_for": "203.0.113.9", "x_mail_domain": "post.example"}
    sign_up = partial(client.ask, "/accounts", "POST")
    assert sign_up(**{**caller, "x_mail_domain": "trash.example"}) == 429
    assert 5 <= client.passed("/accounts", 11, "POST", **caller) <= 10
    assert [sign_up(x_forwarded_for=f"192.0.2.{number}") for number in range(9)] == [200] * 9


def stripe(client: Client) -> None:
    """Twenty of an account at a time; others leave a fifth of the fleet to what is critical."""
    client.spend(10, account_at_once="acme")
    assert [client.ask("/v1/charges", x_account="acme") for _ in range(15)] == [200] * 15
    client.spend(10, account_at_once="slow")
    client.spend(10, account_at_once="slow")
    assert client.ask("/v1/customers", x_account="slow") == 429

    def reserved() -> bool:
        client.spend(8_000, priority="other")
        low = client.ask("/v1/customers", x_account="acme")
        return low == 429 and client.ask("/v1/charges", x_account="acme") == 200

    wait_until(reserved, "others to be denied in a second in which they have spent their part")


ENFORCED: dict[str, Enforced] = {
    "addresses": addresses,
    "api-keys": api_keys,
    "bursts": bursts,
    "business-hours": business_hours,
    "chat": chat,
    "credits": budgets,
    "documents": documents,
    "elastic": elastic,
    "exports": exports,
    "failed-cards": failed_cards,
    "github": github,
    "layers": layers,
    "llm": llm,
    "login": login,
    "mcp": mcp,
    "money": money,
    "plans": plans,
    "posts": posts,
    "shopify": shopify,
    "sign-ups": sign_ups,
    "stripe": stripe,
    "weekly-rewards": weekly_rewards,
}
"""What is asked of Envoy for each policy. A window may begin anew meanwhile, hence twice."""


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    service = ServiceProcess(tmp_path, "--rules", str(copied(tmp_path / "rules")))
    service.start()
    yield service
    service.kill()


@pytest.fixture
def envoy(service: ServiceProcess, upstream: Upstream, tmp_path: Path) -> Iterator[Envoy]:
    need_envoy()
    ports = {"ratelimit": service.grpc_port, "backend": upstream.port}
    envoy = Envoy(configured(), tmp_path, ports)
    envoy.start()
    yield envoy
    envoy.kill()


def test_envoy_takes_the_snippets(tmp_path: Path) -> None:
    """The routes of all policies are valid to Envoy."""
    need_envoy()
    path = tmp_path / "envoy.yaml"
    path.write_text(yaml.safe_dump(configured()))
    command = [COMMAND, "--mode", "validate", "--config-path", str(path)]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_envoy_enforces_them(envoy: Envoy, service: ServiceProcess) -> None:
    """One Envoy and one service hold every policy, each in its own domain."""
    assert list(ENFORCED) == [policy.name for policy in POLICIES]
    for name, enforced in ENFORCED.items():
        client = Client(envoy, service, name)
        enforced(client)
        client.close()

"""A service that is healthy only while there are rules."""

from __future__ import annotations

from pathlib import Path

from ratelimit_service.observability.health import Health, Phase
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.load import LoadPolicy, Rules
from ratelimit_service.settings.translation import from_reference

RULES = "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 2}}]"


async def test_healthy_while_a_domain_has_rules(tmp_path: Path) -> None:
    """Without any domain it is not healthy; bad files change nothing, as in the reference."""
    health = Health()
    health.enter(Phase.SERVING)
    rules = Rules(tmp_path, stats=Stats(), health=health, policy=LoadPolicy(needed=True))
    file = tmp_path / "edge.yaml"
    file.write_text("domain: edge\ndescriptors: nonsense")
    rules.load()
    assert not health.serving
    assert health.why_not.startswith("no domain has rules")

    for text, serving in ((RULES, True), ("domain: [", True), (RULES + "  ", True)):
        file.write_text(text)
        await rules.reload()
        assert health.serving is serving
    file.unlink()
    await rules.reload()
    assert health.serving  # what was good stays


async def test_without_the_setting_it_is_healthy(tmp_path: Path) -> None:
    """A service that does not need rules is healthy without any."""
    health = Health()
    health.enter(Phase.SERVING)
    (tmp_path / "edge.yaml").write_text("domain: edge\ndescriptors: nonsense")
    Rules(tmp_path, stats=Stats(), health=health).load()

    assert health.serving


def test_reference_name() -> None:
    """The reference's variable sets it."""
    environment = {"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": "true"}

    assert from_reference(environment) == {"healthy_with_rules": "true"}

"""Who denies a request, by the documents: enforced rules, quotas, bans, limits without a store."""

from __future__ import annotations

from collections.abc import Sequence

from tests.machine.meaning import Meant, Settings


def denied(meant: Sequence[Meant], settings: Settings) -> bool:
    """Whether the request is denied.

    "Rules with `quota_mode: true` [...] deny a request only when all quota rules that it meets
    are over. Other rules deny alone." "A rule that is both is a shadow: it counts as a quota
    that passed. What gives back hits is no quota beside others." Under `--quota-mode`
    "descriptors that meet no rule count as quotas that passed, those of unlimited rules not
    at all".
    """
    return bool(_denying(meant, settings)) or any(one.banned for one in meant)


def _denying(meant: Sequence[Meant], settings: Settings) -> list[Meant]:
    """The descriptors that deny the request, the one that decides first."""
    enforced = [one for one in meant if one.over and not one.shadow and not one.quota]
    quotas = [one for one in meant if one.quota and (one.terms or one.uncounted) and not one.refund]
    passed = [one for one in quotas if one.shadow or not one.over]
    passed += [one for one in meant if settings.quota_mode and one.without_rule]
    return enforced if passed else enforced + quotas


def queue_of(meant: Sequence[Meant], settings: Settings) -> str:
    """The rule into whose queue a denied request goes.

    "A request is queued if every rule that denies it says `on_limit: enqueue`. It goes into
    the queue of the rule that decided [...]. A peek [...] is not queued. What a ban, a failure
    policy (also `local`) or lack of time denies is not queued, nor is what a limit that the
    caller brought denies."
    """
    denying = _denying(meant, settings)
    queued = all(
        one.rule is not None and one.rule.get("on_limit") == "enqueue" and one.over_by_count
        for one in denying
    )
    asked_for = any(hits for one in denying for hits in one.hits)
    return denying[0].path if denying and queued and asked_for else ""


def fails(meant: Sequence[Meant], policy: str) -> bool:
    """Whether the call fails: a limit has no store, and none beside it is known to be over."""
    return policy == "error" and any(one.denied_without and not one.known_over for one in meant)

"""The numbers the engine runs by, read from the settings once and passed in."""

from __future__ import annotations

from dataclasses import dataclass, field

from django.conf import settings

from hub.policy import Limits


@dataclass(frozen=True, slots=True)
class Tuning:
    """Durations in seconds. `checks.py` compares them with each other and with every action's
    own."""

    limits: Limits = field(default_factory=Limits)
    lease_addend: float = 60.0
    drain_budget: float = 45.0
    claim_depth: int = 80
    senders: int = 50
    sweep_every: float = 5.0
    poll_interval: float = 1.0
    look_share: float = 0.2
    breaker_threshold: int = 10
    breaker_pause: float = 5.0
    breaker_pause_cap: float = 300.0
    beat_every: float = 2.0

    @property
    def margin(self) -> float:
        """Above the scheduling pauses that are tolerated without being fenced off."""
        return self.limits.margin

    def lease(self, max_send: float) -> float:
        """How long a claim of an action with this deadline may be worked on."""
        return max_send + self.lease_addend


def tuning() -> Tuning:
    """The numbers in force."""
    return Tuning(
        limits=Limits(
            max_attempts=settings.HUB_MAX_ATTEMPTS,
            max_age=settings.HUB_MAX_AGE,
            max_lapses=settings.HUB_MAX_LAPSES,
            uncertain_max=settings.HUB_UNCERTAIN_MAX,
            accepted_max=settings.HUB_ACCEPTED_MAX,
            margin=settings.HUB_MARGIN,
            retry_base=settings.HUB_RETRY_BASE,
            retry_cap=settings.HUB_RETRY_CAP,
            look_schedule=tuple(settings.HUB_LOOK_SCHEDULE),
        ),
        lease_addend=settings.HUB_LEASE_ADDEND,
        drain_budget=settings.HUB_DRAIN_BUDGET,
        claim_depth=settings.HUB_CLAIM_DEPTH,
        senders=settings.HUB_SENDERS,
        sweep_every=settings.HUB_SWEEP_EVERY,
        poll_interval=settings.HUB_POLL_INTERVAL,
        breaker_pause=settings.HUB_RETRY_BASE,
        breaker_pause_cap=max(settings.HUB_RETRY_BASE, settings.HUB_RETRY_CAP / 3),
    )

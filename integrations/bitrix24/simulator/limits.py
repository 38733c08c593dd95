"""The leaky bucket: counted per portal and source address, refused calls do not fill it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Bucket:
    level: float = 0.0
    at: float = 0.0


class Limits:
    """Rates per portal; the portal ``*`` stands for all that have none of their own."""

    def __init__(self, rate: float | None = None, burst: float | None = None) -> None:
        self._started_with = (rate, burst)
        self.rates: dict[str, tuple[float, float]] = {}
        self._buckets: dict[tuple[str, str], _Bucket] = {}
        self.reset()

    def reset(self) -> None:
        """Back to what the process was started with, with empty buckets."""
        rate, burst = self._started_with
        self.rates = {}
        self._buckets = {}
        if rate is not None:
            self.rates["*"] = (rate, 50.0 if burst is None else burst)

    def order(self, portal: str, rate: float | None, burst: float | None) -> None:
        """Set the drain per second and the level at which calls are refused; no rate = no limit."""
        for key in [key for key in self._buckets if portal in ("*", key[0])]:
            del self._buckets[key]
        if rate is None:
            self.rates.pop(portal, None)
        else:
            self.rates[portal] = (rate, 50.0 if burst is None else burst)

    def admits(self, portal: str, source: str, now: float) -> bool:
        """Count one call; False if it must be refused."""
        limit = self.rates.get(portal) or self.rates.get("*")
        if limit is None:
            return True
        rate, burst = limit
        bucket = self._buckets.setdefault((portal, source), _Bucket(0.0, now))
        level = max(0.0, bucket.level - (now - bucket.at) * rate)
        bucket.at = now
        if level + 1 > burst:
            bucket.level = level
            return False
        bucket.level = level + 1
        return True

"""Every error Headrace raises, one class for each thing a caller can do differently.

The two that steer the engine are `SourceUnavailable` (the source may come back: it is tried again) and
`SourceMisconfigured` (it will not: somebody has to change something). Whatever else a producer raises ends its stream and
reaches every subscriber unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence


class HeadraceError(Exception):
    """The base of every error that Headrace defines."""


class StreamError(HeadraceError):
    """A subscriber's place on its stream is lost. Subscribe again to go on."""


class AckTimeout(StreamError):
    """The subscriber did not finish an event in time: it was still in hand, unpulled, or not confirmed stored."""


class SubscriberOverflow(StreamError):
    """The subscriber kept its stream waiting for longer than `overflow_grace` allows."""


class StreamEnded(StreamError):
    """The source's iterator returned. Sources run for ever or raise, so this is a failure of the source."""


class SourceUnavailable(HeadraceError):
    """The source does not answer now and may later. Raised by producers; the call is tried again with backoff."""


class SourceMisconfigured(HeadraceError):
    """The source answers, and says no (credentials, permission, a missing topic). Trying again does not help."""


class ConfigError(HeadraceError):
    """A configuration is wrong. `problems` holds one line for each mistake, all of them at once."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class StoreError(HeadraceError):
    """The base of what the store raises."""


class StoreUnavailable(StoreError):
    """The database does not answer now (lock, lost connection, disk full). Nothing was stored; try again."""


class StoreTooNew(StoreError):
    """The database was migrated by a newer Headrace. Upgrade Headrace, or point it at another database."""


class StoreInUse(StoreError):
    """Another `serve` has this SQLite file. Stop it, or use PostgreSQL, which replicas can share."""


class Unstorable(StoreError):
    """The store refuses this unit for its content (NaN, a NUL character, an object, too large). Trying again does not help."""


class SecretKeyMissing(StoreError):
    """What was stored encrypted opens with none of `store.secret_keys`. Add the key it was stored with."""


class TargetError(HeadraceError):
    """A target did not take an event. `retry_after` is in seconds, None leaves the delay to the dispatcher's backoff."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TargetRejected(TargetError):
    """The target will never take this event (HTTP 4xx other than 408 and 429). It goes to the dead letters."""

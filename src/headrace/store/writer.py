"""Group commits: while one group is being stored, the next one gathers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.store.model import GroupReport, Unit

if TYPE_CHECKING:
    from headrace.store.store import Store


class Writer:
    """Stores units in the order they come, in groups, and says which are stored. Callbacks run on the event loop.

    While the database is away it tries again for ever, with backoff: nothing is lost, and nothing is reported stored that is
    not. Bounding what waits here is the submitter's job: see `pending_units` and `pending_bytes`.
    """

    def __init__(
        self,
        store: Store,
        *,
        on_stored: Callable[[list[Unit]], None],
        on_refused: Callable[[Unit, Exception], None],
        on_available: Callable[[bool], None] = lambda available: None,
        on_group: Callable[[GroupReport], None] = lambda report: None,
        max_group: int = 1000,
    ) -> None:
        raise NotImplementedError

    def submit(self, unit: Unit) -> None:
        """Take a unit; never blocks. It ends in `on_stored` (also if it was stored before) or in `on_refused` with
        `Unstorable`, later, never from within this call. Its payloads are encoded now and may be changed afterwards."""
        raise NotImplementedError

    @property
    def pending_units(self) -> int:
        """Units submitted and not answered yet."""
        raise NotImplementedError

    @property
    def pending_bytes(self) -> int:
        """Their size, encoded."""
        raise NotImplementedError

    @property
    def available(self) -> bool:
        """False from the first failed try of a group until one succeeds."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Wait until all that was submitted before is answered. Give it a deadline: the database may be away. Cancelling it
        stops the waiting only."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Stop. Waits for the transaction under way (at most `close_timeout` of the store); what is not stored by then is
        dropped without an answer, and comes again with its redelivery. Flush first."""
        raise NotImplementedError

"""`serve` is killed, again and again, at moments of all kinds."""

from __future__ import annotations

from itertools import islice

import pytest

from .harness import Rig

pytestmark = pytest.mark.e2e

SHORT = pytest.mark.timeout(300)
LONG = (pytest.mark.soak, pytest.mark.timeout(1800))


@pytest.mark.parametrize(
    ("servers", "kills"),
    [
        pytest.param("kafka", 5, marks=SHORT),
        pytest.param("local", 3, marks=SHORT),
        pytest.param("kafka", 20, marks=LONG),
        pytest.param("local", 20, marks=LONG),
    ],
    indirect=["servers"],
)
async def test_x3_killed_at_random_moments_under_load(rig: Rig, kills: int) -> None:
    """X3: each derived event is stored once and handled once by its id, each malformed order is one dead letter, and nothing is
    settled at the broker before it is stored. What comes again was in flight at a kill."""
    serve = rig.serve()
    await serve.start()
    async with rig.load():
        for moment in islice(rig.moments(), kills):
            await moment(serve)
            await rig.kill(serve)
            await serve.begin()
        await serve.becomes_ready()
        await rig.progress()
    await rig.settle()
    assert await serve.terminate() == 0
    print(await rig.reckon(), "ready after", serve.ready_after)
    assert serve.tracebacks() == []

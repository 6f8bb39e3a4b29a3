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


@pytest.mark.parametrize("kills", [pytest.param(1, marks=SHORT), pytest.param(10, marks=LONG)])
@pytest.mark.parametrize("servers", ["kafka"], indirect=True)
async def test_the_other_replica_takes_over(rig: Rig, kills: int) -> None:
    """X16: of two replicas in one group one is killed. The other settles what was its; nothing is lost or stored twice."""
    living, dying = rig.serve(), rig.serve()
    await living.begin()
    await dying.start()
    await living.becomes_ready()

    async def both_work() -> bool:
        return bool(await living.events_read() and await dying.events_read())

    async with rig.load():
        for number in range(kills):
            if number:  # the killed one comes again, and the other is killed
                await dying.start()
                living, dying = dying, living
            await rig.until(both_work)
            await rig.progress(rig.chance.randint(1, 300))
            await rig.kill(dying)
            await rig.all_until_now_settled()
    await rig.settle()
    assert await living.terminate() == 0
    print(await rig.reckon())
    assert living.tracebacks() == dying.tracebacks() == []


@pytest.mark.parametrize(
    ("servers", "stops"),
    [
        pytest.param("kafka", 1, marks=SHORT),
        pytest.param("kafka", 10, marks=LONG),
        pytest.param("local", 10, marks=LONG),
    ],
    indirect=["servers"],
)
async def test_a_drain_under_load_leaves_nothing_to_repeat(rig: Rig, stops: int) -> None:
    """SIGTERM under load ends it with 0 within `shutdown_timeout`; no event comes to the webhook a second time."""
    serve = rig.serve()
    await serve.start()
    async with rig.load():
        for _ in range(stops):
            await serve.becomes_ready()
            await rig.progress(rig.chance.randint(1, 300))
            assert await serve.terminate(seconds=35) == 0
            await serve.begin()
        await serve.becomes_ready()
    await rig.settle()
    assert await serve.terminate() == 0
    print(await rig.reckon())
    assert serve.tracebacks() == []

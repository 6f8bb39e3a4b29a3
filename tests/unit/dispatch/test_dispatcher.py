"""The dispatcher against an outbox in memory, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace.dispatch import DispatchConfig, Dispatcher
from headrace.errors import ConfigError, TargetError, TargetRejected
from headrace.testing.virtual_time import in_virtual_time

LEASE = 30.0
FOREVER = 10**6


@asynccontextmanager
async def running(store: Any, targets: dict[str, Any], **options: Any) -> AsyncIterator[Dispatcher]:
    """A dispatcher that is stopped in the end, however the test ends."""
    dispatcher = Dispatcher(store, targets, clock=lambda: now(), **options)
    dispatcher.start()
    try:
        yield dispatcher
    finally:
        await dispatcher.stop(0.0, drain=False)


def now() -> float:
    return asyncio.get_running_loop().time()


async def hang(event: Any) -> None:
    await asyncio.sleep(FOREVER)


async def until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110  # in virtual time it costs nothing
        await asyncio.sleep(0.01)


# --- claims and latency


@in_virtual_time
async def test_a_woken_dispatcher_delivers_at_once(store: Any, fake_target: Any, observer: Any) -> None:
    """A stored event is delivered when the dispatcher is woken, without waiting for a poll, and its answer is kept."""
    target = fake_target()
    async with running(store, {"eu-orders": target}, observer=observer) as dispatcher:
        await asyncio.sleep(0.1)
        [row] = store.add()
        woken_at = now()
        dispatcher.wake(["eu-orders"])
        await store.settled()
        assert target.calls[0][0] == woken_at
        assert row.answers == [(woken_at, "delivered", "ok")]
        assert observer.outcomes == [("eu-orders", "delivered")]


@in_virtual_time
async def test_events_of_other_replicas_are_found_by_polling(store: Any, fake_target: Any) -> None:
    """Nobody wakes the dispatcher: the event is delivered within a poll interval."""
    target = fake_target()
    async with running(store, {"eu-orders": target}):
        await asyncio.sleep(0.1)
        store.add()
        added_at = now()
        await store.settled()
        assert target.calls[0][0] - added_at <= 1.0


@in_virtual_time
async def test_polling_goes_on_while_the_dispatcher_is_busy(store: Any, fake_target: Any) -> None:
    """A stream of wakes for one trigger does not keep the poll from finding another's event."""
    busy, quiet = fake_target(), fake_target()
    async with running(store, {"busy": busy, "quiet": quiet}) as dispatcher:
        await asyncio.sleep(0.1)
        store.add(trigger_id="quiet")
        for _ in range(200):
            store.add(trigger_id="busy")
            dispatcher.wake(["busy"])
            await asyncio.sleep(0.01)
        assert quiet.calls[0][0] <= 1.1


@in_virtual_time
async def test_a_wake_during_a_claim_is_not_lost(store: Any, fake_target: Any) -> None:
    """An event stored after the claim's snapshot, and told of before its answer, is claimed right after it."""
    async with running(store, {"eu-orders": fake_target()}) as dispatcher:
        await asyncio.sleep(0.1)

        calls = 0
        claim = store.claim

        async def slow_claim(*args: Any, **options: Any) -> list[Any]:
            nonlocal calls
            calls += 1
            found: list[Any] = await claim(*args, **options)
            if calls == 1:
                await asyncio.sleep(0.05)
            return found

        store.claim = slow_claim
        dispatcher.wake()
        await asyncio.sleep(0.01)
        store.add()
        dispatcher.wake()
        woken_at = now()
        await store.settled()
        assert now() - woken_at < 0.2


@in_virtual_time
async def test_a_claim_that_is_not_full_is_followed_by_another(store: Any, fake_target: Any) -> None:
    """The store hands out large events a few at a time: the rest is asked for at once, not at the next poll."""
    claim = store.claim

    async def one_at_a_time(owner: str, limit: int, *args: Any, **options: Any) -> list[Any]:
        found: list[Any] = await claim(owner, 1, *args, **options)
        return found

    store.claim = one_at_a_time
    store.add(20)
    async with running(store, {"eu-orders": fake_target()}, config=DispatchConfig(poll_interval=60)):
        await store.settled()
        assert now() < 1


@in_virtual_time
async def test_calls_are_bounded_by_target_and_in_all(store: Any, fake_target: Any) -> None:
    """No more calls of a target than its `max_concurrency`, and beyond each trigger's first no more than the shared number."""

    async def slowly(event: Any) -> None:
        await asyncio.sleep(0.1)

    limits = {"a": 8, "b": 15, "c": 9, "d": 11}
    targets = {name: fake_target(slowly, max_concurrency=limit) for name, limit in limits.items()}
    for name in targets:
        store.add(100, name)
    most = 0
    async with running(store, targets, config=DispatchConfig(max_concurrency=20)) as dispatcher:
        while set(store.states()) != {"delivered"}:
            most = max(most, dispatcher.status().calls)
            await asyncio.sleep(0.01)
    assert all(targets[name].most_running <= limit for name, limit in limits.items())
    assert most == 20 + 4
    assert sum(len(target.calls) for target in targets.values()) == 400


@in_virtual_time
async def test_hung_targets_do_not_starve_others(store: Any, fake_target: Any) -> None:
    """Targets that hang, with the oldest backlog, use up every shared call; a healthy trigger is still served at once."""
    hung = {f"hung-{n}": fake_target(hang, timeout=20, max_concurrency=32) for n in range(10)}
    for name in hung:
        store.add(200, name)
    healthy = fake_target()
    async with running(store, {**hung, "healthy": healthy}, config=DispatchConfig(max_concurrency=64)) as dispatcher:
        await asyncio.sleep(1.0)
        assert dispatcher.status().calls == 64 + 10
        for number in range(50):
            store.add(trigger_id="healthy")
            added_at = now()
            dispatcher.wake(["healthy"])
            await until(lambda expected=number + 1: len(healthy.calls) == expected)
            assert now() - added_at < 0.1


@in_virtual_time
async def test_a_long_backlog_does_not_delay_a_fresh_event_of_another_trigger(store: Any, fake_target: Any) -> None:
    """Claims take the oldest event first, and a trigger with thousands of them shares with one that has a fresh one."""
    backlogged, fresh = fake_target(), fake_target()
    store.add(5000, "backlogged")
    async with running(store, {"backlogged": backlogged, "fresh": fresh}) as dispatcher:
        await asyncio.sleep(0.02)
        store.add(trigger_id="fresh")
        dispatcher.wake(["fresh"])
        added_at = now()
        await until(lambda: fresh.calls)
        assert now() - added_at < 0.1
        assert len(backlogged.calls) < 2500


@in_virtual_time
async def test_events_without_a_target_stay_pending_and_are_reported(store: Any, fake_target: Any, observer: Any) -> None:
    """An event whose trigger has no target any more is neither claimed nor dropped; a target that comes back gets it."""
    store.registered = ["eu-orders", "gone", "gone-too"]
    [row] = store.add(trigger_id="gone")
    target = fake_target()
    async with running(store, {"eu-orders": target}, observer=observer) as dispatcher:
        await asyncio.sleep(100)
        assert (row.state, row.attempts) == ("pending", 0)
        assert dispatcher.status().untargeted == {"gone"}
        dispatcher.set_targets({"eu-orders": target, "gone": fake_target()})
        await store.settled()
        assert dispatcher.status().untargeted == frozenset()
        assert observer.without_target == [{"gone"}, frozenset()]


# --- what becomes of a try


@in_virtual_time
async def test_a_failed_attempt_is_tried_again_with_a_growing_delay(store: Any, fake_target: Any) -> None:
    """Each wait is about twice the one before, up to the longest; every attempt's answer is kept."""
    failures = iter(range(6))

    async def fail_first(event: Any) -> str:
        if (n := next(failures, None)) is not None:
            raise TargetError(f"no {n}")
        return "yes"

    target = fake_target(fail_first)
    [row] = store.add()
    async with running(store, {"eu-orders": target}, config=DispatchConfig(retry_longest=16.0)):
        await store.settled()
    waits = [after - before for (before, _), (after, _) in zip(target.calls, target.calls[1:], strict=False)]
    for wait, expected in zip(waits, [1, 2, 4, 8, 16, 16], strict=True):
        assert 0.75 * expected <= wait <= 1.25 * expected + 1.0  # a poll interval late at most
    assert [answer[1:] for answer in row.answers] == [("retry", f"no {n}") for n in range(6)] + [("delivered", "yes")]
    assert [event.attempt for _, event in target.calls] == [1, 2, 3, 4, 5, 6, 7]


@in_virtual_time
async def test_a_target_says_when_to_come_again(store: Any, fake_target: Any) -> None:
    """`retry_after` makes the wait longer, up to the longest."""

    async def busy(event: Any) -> None:
        if event.attempt == 1:
            raise TargetError("busy", retry_after=20)
        if event.attempt == 2:
            raise TargetError("busy", retry_after=FOREVER)

    target = fake_target(busy)
    store.add()
    async with running(store, {"eu-orders": target}, config=DispatchConfig(retry_longest=60)):
        await store.settled()
    first, second, third = (at for at, _ in target.calls)
    assert 20 <= second - first <= 21.1
    assert 60 <= third - second <= 61.1


@in_virtual_time
async def test_the_last_attempt_ends_dead_with_every_answer(store: Any, fake_target: Any, observer: Any) -> None:
    """After `max_attempts` the event is dead, and every attempt's answer is there to be read."""

    async def fail(event: Any) -> None:
        raise TargetError(f"answer {event.attempt}")

    [row] = store.add()
    async with running(store, {"eu-orders": fake_target(fail, max_attempts=3)}, observer=observer):
        await store.settled("dead")
    assert [answer[1:] for answer in row.answers] == [
        ("retry", "answer 1"),
        ("retry", "answer 2"),
        ("dead", "attempt 3 was the last: answer 3"),
    ]
    assert [outcome for _, outcome in observer.outcomes] == ["retry", "retry", "dead"]


@in_virtual_time
async def test_a_rejected_event_is_dead_at_once(store: Any, fake_target: Any) -> None:
    """`TargetRejected` is final on the first attempt."""

    async def reject(event: Any) -> None:
        raise TargetRejected("HTTP 400: no such order")

    [row] = store.add()
    async with running(store, {"eu-orders": fake_target(reject)}):
        await store.settled("dead")
    assert [answer[1:] for answer in row.answers] == [("dead", "HTTP 400: no such order")]


@in_virtual_time
async def test_x20_a_failing_target_makes_no_event(store: Any, fake_target: Any) -> None:
    """X20: whatever a target raises becomes an answer of the attempt, never an event, and nothing else is harmed."""

    async def explode(event: Any) -> None:
        raise RuntimeError("boom")

    healthy = fake_target()
    [bad] = store.add(trigger_id="bad")
    store.add(3, "good")
    async with running(store, {"bad": fake_target(explode, max_attempts=1), "good": healthy}):
        await until(lambda: len(healthy.calls) == 3 and bad.state == "dead")
    assert len(store.rows) == 4
    assert bad.answers[0][2] == "attempt 1 was the last: RuntimeError: boom"


# --- leases


@in_virtual_time
async def test_x16_a_claim_is_renewed_while_its_call_runs(store: Any, fake_target: Any) -> None:
    """X16: a call longer than two thirds of its lease keeps it: renewed at a third, never run out, delivered once."""

    async def slowly(event: Any) -> None:
        await asyncio.sleep(29)

    target = fake_target(slowly, timeout=29.5)
    [row] = store.add()
    async with running(store, {"eu-orders": target}), running(store, {"eu-orders": target}):
        await store.settled()
    assert len(target.calls) == 1
    assert row.answers[0][1] == "delivered"
    renewals = [at for at, name in store.calls if name == "renew"]
    assert renewals[0] == pytest.approx(LEASE / 3)


@in_virtual_time
async def test_x16_a_lost_claim_cancels_the_call(store: Any, fake_target: Any, observer: Any) -> None:
    """X16: another replica has the event: at the next renewal our call is cancelled, and our side changes nothing."""
    target = fake_target(hang, timeout=29)
    [row] = store.add()
    async with running(store, {"eu-orders": target}, observer=observer):
        await until(lambda: target.calls)
        row.token += 1  # taken over
        await until(lambda: observer.outcomes)
        assert now() <= LEASE / 3 + 0.1
        assert (target.cancelled, observer.outcomes) == (1, [("eu-orders", "lost")])
        assert (row.state, row.answers) == ("dispatching", [])


@in_virtual_time
async def test_x16_a_result_under_a_lost_claim_has_no_effect(store: Any, fake_target: Any, observer: Any) -> None:
    """X16: the call ends after the claim was taken over: the mark is fenced off, and counted as lost."""

    async def lose(event: Any) -> None:
        row.token += 1

    [row] = store.add()
    async with running(store, {"eu-orders": fake_target(lose)}, observer=observer):
        await until(lambda: observer.outcomes)
    assert observer.outcomes == [("eu-orders", "lost")]
    assert row.answers == []


@in_virtual_time
async def test_x16_a_dead_replicas_claim_is_retaken_once_when_it_expires(store: Any, fake_target: Any) -> None:
    """X16: two replicas; the event that a third one died with is taken up by one of them, once, when the lease has run out."""
    store.add()
    await store.claim("killed", 1, LEASE)
    target = fake_target()
    async with running(store, {"eu-orders": target}), running(store, {"eu-orders": target}):
        await store.settled()
    assert len(target.calls) == 1
    at, event = target.calls[0]
    assert LEASE <= at <= LEASE + 1
    assert event.attempt == 2


@in_virtual_time
async def test_an_event_that_kills_whoever_takes_it_up_ends_dead(store: Any, fake_target: Any) -> None:
    """Claims that expired count as attempts, so a poisonous event is not taken up for ever."""
    [row] = store.add()
    row.attempts = 20
    target = fake_target()
    async with running(store, {"eu-orders": target}):
        await store.settled("dead")
    assert target.calls == []
    assert "20 times without an answer" in row.answers[0][2]


@in_virtual_time
async def test_no_call_runs_on_a_claim_that_cannot_be_proven(store: Any, fake_target: Any, observer: Any) -> None:
    """The store is away: renewals fail, and when the lease may have run out the call is cancelled, by our own clock alone."""
    target = fake_target(hang, timeout=29)
    store.add()

    async def slow_first_claim(name: str) -> None:
        if name == "claim":
            await asyncio.sleep(5)

    store.before = slow_first_claim
    async with running(store, {"eu-orders": target}, observer=observer):
        await until(lambda: target.calls)
        store.away = True
        await until(lambda: observer.outcomes)
        assert now() == pytest.approx(LEASE, abs=0.02)  # from before the claim was asked for, not from its answer
        assert (target.cancelled, observer.outcomes) == (1, [("eu-orders", "lost")])


@in_virtual_time
async def test_a_claim_that_comes_too_late_is_not_used(store: Any, fake_target: Any) -> None:
    """A claim's answer that took longer than its lease starts no call."""
    target = fake_target()
    store.add()
    claim = store.claim

    async def late(*args: Any, **options: Any) -> list[Any]:
        found: list[Any] = await claim(*args, **options)
        store.claim = claim
        await asyncio.sleep(LEASE + 1)
        return found

    store.claim = late
    async with running(store, {"eu-orders": target}):
        await store.settled()
    assert [event.token for _, event in target.calls] == [2]


@in_virtual_time
async def test_nothing_is_lost_while_the_store_is_away(store: Any, fake_target: Any) -> None:
    """The store goes away between call and mark: the results wait, the claims are asked for with backoff, and all ends well."""
    target = fake_target()
    store.add(50)

    async def outage(event: Any) -> str:
        store.away = True
        return "ok"

    target.action = outage
    async with running(store, {"eu-orders": target}) as dispatcher:
        await until(lambda: target.calls)
        await asyncio.sleep(20)
        assert not dispatcher.status().store_available
        tries = sum(name == "claim" for at, name in store.calls if at > 1)
        assert tries < 20
        target.action = None
        store.away = False
        await store.settled()
        assert dispatcher.status().store_available
    assert len(target.calls) == 50


@in_virtual_time
async def test_results_that_cannot_be_stored_do_not_fill_the_memory(store: Any, fake_target: Any) -> None:
    """Claims work and marks do not: no more is claimed than fits, until the marks are through."""
    target = fake_target()
    store.add(500)

    async def marks_hang(name: str) -> None:
        if name.startswith("mark"):
            await asyncio.sleep(max(0.0, 10 - now()))

    store.before = marks_hang
    async with running(store, {"eu-orders": target}, config=DispatchConfig(max_concurrency=16)):
        await asyncio.sleep(9)
        assert len(target.calls) <= 16 + 17 + 1
        await store.settled()


# --- stopping


@in_virtual_time
async def test_stop_drains_what_is_in_flight(store: Any, fake_target: Any) -> None:
    """Calls under way are finished and marked, nothing more is claimed, the target is closed."""

    async def slowly(event: Any) -> None:
        await asyncio.sleep(3)

    target = fake_target(slowly, max_concurrency=4)
    store.add(10)
    dispatcher = Dispatcher(store, {"eu-orders": target})
    dispatcher.start()
    await until(lambda: len(target.calls) == 4)
    await dispatcher.stop(30)
    assert now() < 4
    assert store.states() == {"delivered": 4, "pending": 6}
    assert (target.cancelled, target.closed) == (0, 1)
    assert not dispatcher.status().running


@in_virtual_time
async def test_stop_gives_back_what_does_not_finish(store: Any, fake_target: Any, observer: Any) -> None:
    """At the deadline the calls still under way are cancelled, and their events are pending again, without a burnt attempt."""
    target = fake_target(hang, timeout=29, max_concurrency=4)
    rows = store.add(4)
    dispatcher = Dispatcher(store, {"eu-orders": target}, observer=observer)
    dispatcher.start()
    await until(lambda: len(target.calls) == 4)
    stopped_at = now()
    await dispatcher.stop(10)
    assert now() - stopped_at <= 10
    assert [(row.state, row.attempts, row.answers) for row in rows] == [("pending", 0, [])] * 4
    assert (target.cancelled, observer.given_back) == (4, 4)


@in_virtual_time
async def test_stop_without_drain_cancels_at_once(store: Any, fake_target: Any) -> None:
    """A second signal: the calls are cancelled and given back now."""
    target = fake_target(hang, timeout=29)
    [row] = store.add()
    dispatcher = Dispatcher(store, {"eu-orders": target})
    dispatcher.start()
    await until(lambda: target.calls)
    stopped_at = now()
    await dispatcher.stop(10, drain=False)
    assert now() == stopped_at
    assert (row.state, row.attempts) == ("pending", 0)


@in_virtual_time
async def test_stop_gives_back_a_claim_that_was_under_way(store: Any, fake_target: Any) -> None:
    """A claim that is answered after the stop began is given back, not delivered and not left to its lease."""
    target = fake_target()
    rows = store.add(3)

    async def slow(name: str) -> None:
        if name == "claim":
            await asyncio.sleep(1)

    store.before = slow
    dispatcher = Dispatcher(store, {"eu-orders": target})
    dispatcher.start()
    await asyncio.sleep(0.5)
    await dispatcher.stop(10)
    assert target.calls == []
    assert [(row.state, row.attempts) for row in rows] == [("pending", 0)] * 3


@in_virtual_time
async def test_stop_gives_back_what_was_claimed_and_not_begun(store: Any, fake_target: Any, observer: Any) -> None:
    """A stop between the claim's answer and the first step of its calls: nothing is sent, everything is given back."""
    target = fake_target()
    rows = store.add(3)
    claim = store.claim
    stops: list[asyncio.Task[None]] = []

    async def stop_meanwhile(*args: Any, **options: Any) -> list[Any]:
        found: list[Any] = await claim(*args, **options)
        if not stops:
            asyncio.get_running_loop().call_soon(
                lambda: stops.append(asyncio.get_running_loop().create_task(dispatcher.stop(10, drain=False)))
            )
            await asyncio.sleep(0)
            assert stops  # it runs its first step after this, and before those of the calls
        return found

    store.claim = stop_meanwhile
    dispatcher = Dispatcher(store, {"eu-orders": target}, observer=observer)
    dispatcher.start()
    await until(lambda: stops)
    await stops[0]
    assert target.calls == []
    assert [(row.state, row.attempts) for row in rows] == [("pending", 0)] * 3
    assert (observer.given_back, dispatcher.status().calls) == (3, 0)


@in_virtual_time
async def test_stop_ends_in_time_while_the_store_is_away(store: Any, fake_target: Any) -> None:
    """Neither results nor claims can be given back: the stop ends at its deadline all the same."""
    target = fake_target(hang, timeout=29)
    store.add(4)
    dispatcher = Dispatcher(store, {"eu-orders": target})
    dispatcher.start()
    await until(lambda: len(target.calls) == 4)

    async def hangs(name: str) -> None:
        await asyncio.sleep(FOREVER)

    store.before = hangs
    stopped_at = now()
    await dispatcher.stop(10)
    assert now() - stopped_at <= 10.5
    assert target.closed == 1


@in_virtual_time
async def test_a_cancelled_stop_is_a_cancellation(store: Any, fake_target: Any) -> None:
    """Cancelling `stop` raises in the caller, and the calls are cancelled with it."""
    target = fake_target(hang, timeout=29)
    store.add()
    dispatcher = Dispatcher(store, {"eu-orders": target})
    dispatcher.start()
    await until(lambda: target.calls)
    stop = asyncio.create_task(dispatcher.stop(20))
    await asyncio.sleep(1)
    stop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stop
    await until(lambda: target.cancelled)


@in_virtual_time
async def test_stop_before_start_closes_the_targets(store: Any, fake_target: Any) -> None:
    """A dispatcher that was never started still owns its targets."""
    target = fake_target()
    await Dispatcher(store, {"eu-orders": target}).stop()
    assert target.closed == 1


# --- targets that change


@in_virtual_time
async def test_a_replaced_target_ends_its_calls_and_is_closed(store: Any, fake_target: Any) -> None:
    """After `set_targets` new events go to the new target; the old one is closed after its last call, an unchanged one never."""
    release = asyncio.Event()

    async def wait(event: Any) -> None:
        await release.wait()

    old, new, same = fake_target(wait), fake_target(), fake_target()
    store.add()
    async with running(store, {"eu-orders": old, "other": same}) as dispatcher:
        await until(lambda: old.calls)
        dispatcher.set_targets({"eu-orders": new, "other": same})
        store.add()
        await until(lambda: new.calls)
        assert old.closed == 0
        release.set()
        await until(lambda: old.closed)
        assert (old.cancelled, new.closed, same.closed) == (0, 0, 0)
        assert store.states() == {"delivered": 2}


async def test_a_timeout_that_is_not_shorter_than_the_lease_is_refused(store: Any, fake_target: Any) -> None:
    """A call must be able to end before its claim does; every target that cannot is named."""
    targets = {"a": fake_target(timeout=30), "b": fake_target(timeout=29), "c": fake_target(timeout=60)}
    with pytest.raises(ConfigError) as refused:
        Dispatcher(store, targets)
    assert [problem.split(":")[0] for problem in refused.value.problems] == ["triggers.a.target", "triggers.c.target"]

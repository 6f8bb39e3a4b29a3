"""The engine beside Airflow's manager, and beside its own filters drained without any manager. CPU time."""

from __future__ import annotations

from benchmarks.goals import Goal, Report
from benchmarks.worlds import World, Worlds, interleaved, median, ratio

# subscribers: at least, stretch, our events, Airflow's events, rounds
BATCHES_OF_100 = {
    1: (8, 15, 40_000, 5_000, 7),
    10: (12, 20, 12_000, 1_000, 7),
    100: (15, 25, 3_000, 200, 5),
    1000: (18, 30, 400, 100, 3),
}
SINGLE_EVENTS = {1: (1.5, 2, 4_000, 4_000, 9), 10: (2, 2.5, 2_000, 1_000, 7), 100: (2, 3, 400, 200, 7), 1000: (2.5, 4, 60, 30, 3)}


def report() -> Report:
    found = Report("engine")
    with Worlds() as worlds:
        if worlds.airflow is None:
            found.missing.append("Airflow's manager: its environment is not there; `make bench` prepares it")
        else:
            for batch, cases in ((100, BATCHES_OF_100), (1, SINGLE_EVENTS)):
                for subscribers, case in cases.items():
                    _against_airflow(found, worlds.headrace, worlds.airflow, batch, subscribers, *case)
            _index_against_airflow(found, worlds.headrace, worlds.airflow)
        for subscribers, events in ((10, 20_000), (100, 4_000), (1000, 600)):
            _against_filters(found, worlds.headrace, subscribers, events)
        _lanes(found, worlds.headrace)
        _nobody(found, worlds.headrace)
    return found


def _against_airflow(
    report: Report, ours: World, airflow: World, batch: int, subscribers: int,
    least: float, stretch: float, our_events: int, their_events: int, rounds: int,
) -> None:  # fmt: skip
    job = {"subscribers": subscribers, "batch": batch}
    mine, theirs = interleaved(rounds, [(ours, job | {"events": our_events}), (airflow, job | {"events": their_events})])
    goal = Goal(f"against Airflow's manager, batch {batch}, {_subscribers(subscribers)}", least, stretch)
    detail = f"{1e9 / median(mine):,.0f} and {1e9 / median(theirs):,.0f} events/s"
    report.add(goal, ratio(theirs, mine), detail)


def _index_against_airflow(report: Report, ours: World, airflow: World) -> None:
    """Airflow offers every event to all 10 000, so it gets fewer events: its time grows with their number."""
    job = {"subscribers": 10_000, "batch": 100, "indexed": True}
    mine, theirs = interleaved(3, [(ours, job | {"events": 20_000}), (airflow, job | {"events": 8, "batch": 8})])
    goal = Goal("match index, 10 000 subscribers, one match an event, against Airflow's manager", 2000, 5000)
    report.add(goal, ratio(theirs, mine), f"{median(mine) / 1e3:.2f} µs and {median(theirs) / 1e6:.0f} ms an event")


def _against_filters(report: Report, ours: World, subscribers: int, events: int) -> None:
    job = {"subscribers": subscribers, "batch": 100, "events": events}
    mine, bare = interleaved(7, [(ours, job), (ours, job | {"bare": True})])
    goal = Goal(f"over the bare drained filters, batch 100, {_subscribers(subscribers)}", 1.6, 1.3, better="less")
    report.add(
        goal,
        ratio(mine, bare),
        f"{median(mine) / subscribers:.0f} and {median(bare) / subscribers:.0f} ns per (event, subscriber)",
    )


def _lanes(report: Report, ours: World) -> None:
    job = {"subscribers": 100, "batch": 100, "events": 6_000}
    many, one = interleaved(9, [(ours, job | {"lanes": 64}), (ours, job)])
    goal = Goal("64 lanes against 1, 100 subscribers", 70, 85, unit=" %")
    report.add(goal, 100 * ratio(one, many), f"{median(many) / 1e3:.1f} and {median(one) / 1e3:.1f} µs an event")


def _nobody(report: Report, ours: World) -> None:
    job = {"batch": 100, "events": 40_000, "indexed": True, "nobody": True}
    many, few = interleaved(7, [(ours, job | {"subscribers": 10_000}), (ours, job | {"subscribers": 100})])
    report.add(Goal("an event nobody matches: 10 000 subscribers against 100", 1.5, 1.2, better="less"), ratio(many, few))
    report.add(Goal("an event nobody matches, 10 000 subscribers", 2, 2, " µs", "less"), median(many) / 1e3)


def _subscribers(count: int) -> str:
    return f"{count} subscriber{'s' * (count > 1)}"

"""The demo's own judgement: what it expects, and whether it would notice."""

from collections import Counter
from collections.abc import AsyncIterator

import pytest
from rich.console import Console

from headrace.app.demo.filters import Audit, ExpressShipping
from headrace.app.demo.orders import Expected, make_orders
from headrace.app.demo.receiver import Receiver, order_number
from headrace.app.demo.report import Report, Stored, percentile
from headrace.connector import Message
from headrace.triggers import EventPattern


def made(count: int = 3000) -> tuple[list[Message], Expected]:
    expected = Expected()
    return list(make_orders(count, 20, expected)), expected


def number(message: Message) -> int:
    return int(dict(message.headers)["order"] or 0)


async def stream(messages: list[Message]) -> AsyncIterator[Message]:
    for message in messages:
        yield message


def test_orders_are_the_same_each_time() -> None:
    """The demo can be repeated; about one in a hundred is malformed, in three ways."""
    first, expected = made()
    second, _ = made()
    assert [message.value for message in first] == [message.value for message in second]
    assert 10 < len(expected.rejected) < 60
    assert expected.derived["audit"] == set(range(1, 3001))
    assert 300 < len(expected.derived["large-eu-orders"]) < 800
    assert 400 < len(expected.derived["express-shipping"]) < 800


async def test_the_triggers_derive_what_is_expected_of_them() -> None:
    """What follows from how orders were made, and what their reading gives, are the same."""
    messages, expected = made()
    audited = [event.payload["order"] async for event in Audit().filter_shared_stream(stream(messages))]
    assert set(audited) == expected.derived["audit"]
    well_formed = [message for message in messages if number(message) not in expected.rejected]
    shipped = [event.payload["order"] async for event in ExpressShipping().filter_shared_stream(stream(well_formed))]
    assert set(shipped) == expected.derived["express-shipping"]
    pattern = EventPattern({"region": ["eu"], "amount": [{"numeric": [">", 100]}]})
    assert {number(message) for message in messages if matches(pattern, message)} == expected.derived["large-eu-orders"]


def matches(pattern: EventPattern, message: Message) -> bool:
    try:
        return pattern.matches(message.json())
    except ValueError:
        return False


class Course:
    """A run in which everything went well, to be spoilt."""

    def __init__(self) -> None:
        self.expected = Expected({"audit": {1, 2, 3}, "express-shipping": {2}}, {3})
        works = [("audit", 1), ("audit", 2), ("audit", 3), ("express-shipping", 2)]
        self.stored = Stored({f"{trigger}:{order}:0" for trigger, order in works}, Counter(works), rejected=Counter([3]))
        self.receiver = Receiver()
        self.receiver.ids = set(self.stored.identities)
        self.receiver.handled = Counter(works)
        self.receiver.requests = 6
        self.exit_code = 0

    def lose(self, trigger: str, order: int) -> None:
        del self.stored.works[trigger, order]
        self.stored.identities.remove(f"{trigger}:{order}:0")

    def store_again(self, trigger: str, order: int) -> None:
        self.stored.works[trigger, order] += 1
        self.stored.identities.add(f"{trigger}:other-{order}:0")

    def report(self) -> Report:
        return Report.of(self.expected, self.stored, self.receiver, published=3, read=4, exit_code=self.exit_code)


async def test_a_good_run_is_good_and_repeats_are_no_doubles() -> None:
    """A request with an id that came before is counted, and the work was done once."""
    report = Course().report()
    assert report.is_good
    assert (report.lost, report.doubled, report.repeats, report.dispatched) == (0, 0, 2, 4)


@pytest.mark.parametrize(
    ("spoil", "lost", "doubled", "unexpected"),
    [
        (lambda course: course.lose("audit", 1), 1, 0, 0),
        (lambda course: course.receiver.handled.pop(("audit", 1)), 1, 0, 0),
        (lambda course: course.stored.rejected.clear(), 1, 0, 0),
        (lambda course: course.store_again("audit", 1), 0, 1, 0),
        (lambda course: course.receiver.handled.update([("audit", 1)]), 0, 1, 0),
        (lambda course: course.stored.rejected.update([3]), 0, 1, 0),
        (lambda course: course.stored.identities.pop(), 0, 1, 0),
        (lambda course: course.receiver.handled.update([("audit", 9)]), 0, 0, 1),
        (lambda course: course.stored.rejected.update([1]), 0, 0, 1),
        (lambda course: setattr(course.stored, "other_dead_letters", 1), 0, 0, 1),
        (lambda course: setattr(course.receiver, "unreadable", 1), 0, 0, 1),
        (lambda course: setattr(course, "exit_code", -9), 0, 0, 0),
    ],
)
async def test_what_goes_wrong_is_counted(spoil: object, lost: int, doubled: int, unexpected: int) -> None:
    """Each kind of loss, of doubling, and of what nobody asked for makes the run a failure."""
    course = Course()
    assert callable(spoil)
    spoil(course)
    report = course.report()
    assert not report.is_good
    assert (report.lost, report.doubled, report.unexpected) == (lost, doubled, unexpected)


async def test_the_table_shows_the_figures() -> None:
    """All that the demo promises to show."""
    console = Console(record=True, width=120)
    console.print(Course().report().table())
    text = console.export_text()
    for name in ("published", "read", "derived", "stored", "dispatched", "rejected", "lost", "doubled", "p50", "p99"):
        assert name in text


def test_percentiles_are_by_nearest_rank() -> None:
    """The smallest value that so many do not exceed."""
    values = [float(value) for value in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([7.0], 0.99), percentile([], 0.5)) == (50, 99, 7, 0)


def test_an_order_number_is_found_in_each_triggers_payload() -> None:
    """The pattern's payload holds the order as its value."""
    assert order_number({"order": 3, "parcel": []}) == 3
    assert order_number({"value": {"order": 4}, "key": None}) == 4
    for wrong in (None, {}, {"value": 3}, {"order": "3"}):
        with pytest.raises(ValueError, match="no order number"):
            order_number(wrong)

"""`headrace events`: look at derived events and dead letters, and change their fate by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from headrace.app.cli import console
from headrace.app.cli.common import AsJson, ConfigPath, load, with_store
from headrace.errors import HeadraceError
from headrace.store import DeadLetterRecord, EventFilter, EventRecord, EventState, Store

app = typer.Typer(no_args_is_help=True)

Refs = Annotated[
    list[str] | None, typer.Argument(metavar="[EVENT]...", help="Numbers or identities of events.", show_default=False)
]
OfTrigger = Annotated[str | None, typer.Option("--trigger", help="Events of this trigger only.", show_default=False)]
OfStream = Annotated[str | None, typer.Option("--stream", help="Events of this stream only.", show_default=False)]
OfState = Annotated[
    list[EventState] | None, typer.Option("--state", help="Events in this state (repeatable).", show_default=False)
]
OlderThan = Annotated[float | None, typer.Option("--older-than", help="Stored at least so many seconds ago.", show_default=False)]
NewerThan = Annotated[
    float | None, typer.Option("--newer-than", help="Stored less than so many seconds ago.", show_default=False)
]
All = Annotated[bool, typer.Option("--all", help="All events, where nothing else selects some.")]
Dead = Annotated[bool, typer.Option("--dead-letters", help="Dead letters instead of events.")]


@app.callback()
def events(context: typer.Context, config: ConfigPath) -> None:
    """Look at derived events and dead letters, and change their fate by hand.

    Example: headrace events headrace.yaml list --state dead
    """
    context.obj = config


@app.command("list")
def list_events(
    context: typer.Context,
    trigger: OfTrigger = None,
    stream: OfStream = None,
    state: OfState = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    dead_letters: Dead = False,
    cause: Annotated[
        str | None, typer.Option(help="Dead letters of this cause: rejected, failed, unstorable or target.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 50,
    before: Annotated[
        int | None, typer.Option(help="The next page: the number of the last one seen.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List events, or dead letters, the newest first.

    Example: headrace events headrace.yaml list --trigger audit --state dead --limit 20
    """
    where = EventFilter(trigger_id=trigger, stream=stream, states=state, older_than=older_than, newer_than=newer_than)

    async def found(store: Store) -> list[dict[str, Any]]:
        if dead_letters:
            letters = await store.dead_letters.find(trigger_id=trigger, cause=cause, limit=limit, before=before)
            return [_letter_row(letter) for letter in letters]
        return [_event_row(record) for record in await store.events.find(where, limit=limit, before=before)]

    if dead_letters:
        columns: Sequence[str] = ("id", "trigger", "cause", "reason", "attempts", "message", "stored")
    else:
        columns = ("id", "identity", "state", "attempts", "stored", "answer")
    rows = with_store(load(context.obj), found)
    console.print_rows(columns, rows, as_json=as_json, empty="no dead letters" if dead_letters else "no events")


@app.command()
def show(
    context: typer.Context,
    ref: Annotated[str, typer.Argument(metavar="EVENT", help="The number or identity of an event; the number of a dead letter.")],
    dead_letters: Dead = False,
    as_json: AsJson = False,
) -> None:
    """Show one event with its payload and the history of its attempts, or one dead letter with its message.

    Example: headrace events headrace.yaml show 17
    """

    async def found(store: Store) -> dict[str, Any]:
        if dead_letters:
            letter = await store.dead_letters.show(_numbers([ref])[0])
            if letter is None:
                raise HeadraceError(f"there is no dead letter {ref}")
            return _letter_row(letter) | _letter_content(letter)
        record = await store.events.show(int(ref) if ref.isdecimal() else ref)
        if record is None:
            raise HeadraceError(f"there is no event {ref!r}")
        history = [f"{console.moment(attempt.ended_at)} {attempt.outcome}: {attempt.answer}" for attempt in record.history]
        payload = record.event.payload if record.event.has_payload else "(deleted)"
        return _event_row(record) | {"payload": payload, "history": history}

    fields = with_store(load(context.obj), found)
    if not as_json and isinstance(fields.get("history"), list):
        fields["history"] = "\n".join(fields["history"]) or None
    console.print_fields(fields, as_json=as_json)


@app.command()
def retry(
    context: typer.Context,
    refs: Refs = None,
    trigger: OfTrigger = None,
    stream: OfStream = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    everything: All = False,
    new_generation: Annotated[
        bool, typer.Option(help="Delivered events too, under a new identity, so that the target takes them as new.")
    ] = False,
) -> None:
    """Dispatch dead events again, with fresh attempts.

    Example: headrace events headrace.yaml retry --trigger audit --newer-than 86400
    """
    where = _selected(refs, everything, trigger_id=trigger, stream=stream, older_than=older_than, newer_than=newer_than)
    count = with_store(load(context.obj), lambda store: store.events.retry(where, new_generation=new_generation))
    console.say(f"{count} events are pending again")


@app.command()
def forget(
    context: typer.Context,
    refs: Refs = None,
    trigger: OfTrigger = None,
    stream: OfStream = None,
    state: OfState = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    everything: All = False,
    dead_letters: Dead = False,
) -> None:
    """Let messages be derived again when the broker delivers them again (after you set its position back).

    Example: headrace events headrace.yaml forget --stream orders --newer-than 3600
    """
    if dead_letters:
        numbers = _numbers(refs)
        count = with_store(load(context.obj), lambda store: store.dead_letters.forget(numbers))
    else:
        where = _selected(
            refs, everything, trigger_id=trigger, stream=stream, states=state, older_than=older_than, newer_than=newer_than
        )
        count = with_store(load(context.obj), lambda store: store.events.forget(where))
    console.say(f"{count} messages will be derived again when they are delivered again")


@app.command()
def purge(
    context: typer.Context,
    refs: Refs = None,
    trigger: OfTrigger = None,
    stream: OfStream = None,
    state: OfState = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    everything: All = False,
    dead_letters: Dead = False,
) -> None:
    """Take events out: they are never dispatched, and a redelivery of their message changes nothing.

    Example: headrace events headrace.yaml purge --state pending --older-than 86400
    """
    if dead_letters:
        numbers = _numbers(refs)
        count = with_store(load(context.obj), lambda store: store.dead_letters.purge(numbers))
        console.say(f"{count} dead letters were emptied")
    else:
        where = _selected(
            refs, everything, trigger_id=trigger, stream=stream, states=state, older_than=older_than, newer_than=newer_than
        )
        count = with_store(load(context.obj), lambda store: store.events.purge(where))
        console.say(f"{count} events were purged")


def _selected(refs: Sequence[str] | None, everything: bool, **conditions: Any) -> EventFilter:
    """The filter of what the command was told to change; nothing is never taken for everything."""
    given = {name: value for name, value in conditions.items() if value}
    if not refs and not given and not everything:
        raise typer.BadParameter("say which events: by number or identity, by --trigger, --stream, --state or age, or --all")
    if everything and (refs or given):
        raise typer.BadParameter("--all goes with nothing else that selects events")
    ids = [int(ref) for ref in refs or [] if ref.isdecimal()]
    identities = [ref for ref in refs or [] if not ref.isdecimal()]
    if ids and identities:
        raise typer.BadParameter("give numbers or identities, not both")
    return EventFilter(ids=ids or None, identities=identities or None, **given)


def _numbers(refs: Sequence[str] | None) -> list[int]:
    if not refs or not all(ref.isdecimal() for ref in refs):
        raise typer.BadParameter("give the numbers of dead letters")
    return [int(ref) for ref in refs]


def _event_row(record: EventRecord) -> dict[str, Any]:
    event = record.event
    return {
        "id": event.id,
        "identity": event.identity,
        "trigger": event.trigger_id,
        "stream": event.stream,
        "state": record.state.value,
        "attempts": event.attempt,
        "published": console.moment(event.published_at),
        "stored": console.moment(event.stored_at),
        "due": console.moment(record.due_at),
        "settled": console.moment(record.settled_at),
        "answer": record.last_answer,
    }


def _letter_row(letter: DeadLetterRecord) -> dict[str, Any]:
    return {
        "id": letter.id,
        "trigger": letter.trigger_id,
        "stream": letter.stream,
        "message": letter.message_id,
        "cause": letter.cause,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "source": letter.source,
        "published": console.moment(letter.published_at),
        "stored": console.moment(letter.stored_at),
        "bytes": letter.size,
    }


def _letter_content(letter: DeadLetterRecord) -> dict[str, Any]:
    message = letter.message
    if message is None:
        return {"traceback": letter.traceback}
    return {
        "key": _text(message.key),
        "headers": {name: _text(value) for name, value in message.headers},
        "value": _text(message.value),
        "traceback": letter.traceback,
    }


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")

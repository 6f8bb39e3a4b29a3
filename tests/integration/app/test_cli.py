"""The commands, as a user runs them: in this process, through `main`."""

import asyncio
import io
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.app.cli import main
from headrace.app.config import load_config
from headrace.connector import Message
from headrace.store import DeadLetter, Store, TriggerDefinition, Unit, Writer
from headrace.triggers.base import TriggerEvent

CONFIG = """
store: {url: "sqlite:///store.db"}
streams:
  orders: {connector: local, path: orders.db, queue: orders}
triggers:
  eu: {stream: orders, match: {region: [eu]}, target: {log: {}}}
  all: {stream: orders, match: {region: [{exists: true}]}, target: {log: {}}}
"""


class Result(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Result]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Run a command in a directory with a configuration; `stdin` is what it reads."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headrace.yaml").write_text(CONFIG)

    def run(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as exited:
            main(arguments)
        captured = capfd.readouterr()
        code = exited.value.code
        assert isinstance(code, int) or code is None
        return Result(code or 0, captured.out, captured.err)

    return run


async def fill(*units: Unit) -> None:
    """Store these units as `serve` would, with their triggers."""
    stored: list[Unit] = []
    store = await Store.open("sqlite:///store.db")
    try:
        definitions = [
            TriggerDefinition(name, "headrace.triggers.pattern.PatternTrigger", {}, "orders") for name in ("eu", "old")
        ]
        await store.triggers.register(definitions)
        writer = Writer(store, on_stored=stored.extend, on_refused=lambda unit, error: pytest.fail(str(error)))
        for unit in units:
            writer.submit(unit)
        await writer.flush()
        await writer.aclose()
    finally:
        await store.aclose()
    assert len(stored) == len(units)


def unit(trigger: str, number: int, **payload: Any) -> Unit:
    return Unit(trigger, "orders", f"m{number}", [TriggerEvent({"n": number, **payload})], published_at=1_700_000_000.0)


def queued() -> list[tuple[bytes | None, bytes | None, str | None]]:
    with sqlite3.connect("orders.db") as db:
        return db.execute("SELECT value, key, headers FROM message ORDER BY id").fetchall()


@pytest.mark.parametrize(
    "command",
    [
        ["serve"],
        ["check"],
        ["demo"],
        ["publish"],
        ["connectors"],
        ["schema"],
        ["db", "c", "upgrade"],
        ["triggers"],
        ["events"],
        *(["triggers", "c", name] for name in ("list", "pause", "resume", "remove")),
        *(["events", "c", name] for name in ("list", "show", "retry", "forget", "purge")),
    ],
)
def test_every_command_explains_itself_with_an_example(cli: Cli, command: list[str]) -> None:
    """`--help` ends well and shows a call that works."""
    result = cli(*command, "--help")
    assert result.code == 0
    assert f"Example: headrace {command[0]}" in " ".join(result.out.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["check"],
        ["check", "headrace.yaml", "--nonsense"],
        ["publish", "headrace.yaml", "orders", "--value", "x", "--file", "headrace.yaml"],
        ["publish", "headrace.yaml", "orders", "--count", "2"],
        ["publish", "headrace.yaml", "orders", "--value", "x", "--header", "novalue"],
        ["events", "headrace.yaml", "purge"],
        ["events", "headrace.yaml", "purge", "--all", "--trigger", "eu"],
        ["events", "headrace.yaml", "forget", "--dead-letters", "x"],
        ["events", "headrace.yaml", "list", "--state", "nonsense"],
    ],
)
def test_wrong_use_exits_with_2(cli: Cli, arguments: list[str]) -> None:
    """And says what is wrong, without a traceback."""
    result = cli(*arguments)
    assert (result.code, result.out) == (2, "")
    assert "Traceback" not in result.err
    assert result.err


def test_check_says_what_is_right(cli: Cli) -> None:
    """Without connecting, and without making a store."""
    result = cli("check", "headrace.yaml")
    assert (result.code, result.err) == (0, "headrace.yaml is right: 1 streams, 2 triggers\n")
    assert cli("check", "headrace.yaml", "--json").json()["streams"] == {"orders": "local"}
    assert not Path("store.db").exists()


def test_check_names_every_mistake_and_exits_with_1(cli: Cli) -> None:
    """A line each; as JSON too."""
    Path("wrong.yaml").write_text("stroe: {}\nstreams: {orders: {connector: lokal}}\n")
    result = cli("check", "wrong.yaml")
    assert (result.code, result.out) == (1, "")
    assert result.err.splitlines() == [
        "error: wrong.yaml:1: stroe: unknown key; did you mean 'store'?",
        "error: wrong.yaml:2: streams.orders.connector: unknown connector 'lokal': installed are kafka, local; "
        "did you mean 'local'?",
    ]
    found = cli("check", "wrong.yaml", "--json")
    assert (found.code, found.json()["ok"], len(found.json()["problems"])) == (1, False, 2)


def test_connectors_and_their_options_are_listed(cli: Cli) -> None:
    """The installed ones with what they promise; one's keys with types and defaults."""
    assert {row["name"] for row in cli("connectors", "--json").json()} >= {"local", "kafka"}
    rows = {row["key"]: row for row in cli("connectors", "local", "--json").json()}
    assert rows["path"]["default"] == "required"
    assert "queue" in cli("connectors", "local").out
    assert cli("connectors", "nonsense").code == 1


def test_schema_is_json(cli: Cli) -> None:
    """With the connectors that are installed."""
    schema = cli("schema").json()
    assert {branch["title"] for branch in schema["$defs"]["StreamSection"]["oneOf"]} >= {"a local stream", "a kafka stream"}


def test_publish_takes_lines_json_lines_values_and_files(cli: Cli) -> None:
    """Each is in the broker when the command returns, with key and headers."""
    assert cli("publish", "headrace.yaml", "orders", stdin=b"one\n\ntwo\r\n").err == "2 messages are published to orders\n"
    assert cli("publish", "headrace.yaml", "orders", "--value", "v", "--key", "k", "--header", "a=b=c", "--count", "2").code == 0
    lines = b'{"value": {"x": 1}, "key": "own"}\n{"value": "t", "headers": {"h": "i"}}\n'
    assert cli("publish", "headrace.yaml", "orders", "--json-lines", "--key", "k", stdin=lines).code == 0
    Path("blob").write_bytes(b"\xff\n\n")
    assert cli("publish", "headrace.yaml", "orders", "--file", "blob").code == 0
    assert [(value, key) for value, key, _ in queued()] == [
        (b"one", None),
        (b"two", None),
        (b"v", b"k"),
        (b"v", b"k"),
        (b'{"x":1}', b"own"),
        (b"t", b"k"),
        (b"\xff\n\n", None),
    ]
    assert json.loads(queued()[2][2] or "")[0][0] == "a"


def test_publish_says_how_far_it_came(cli: Cli) -> None:
    """A wrong line stops it with its number; nothing of its batch is published."""
    result = cli("publish", "headrace.yaml", "orders", "--json-lines", stdin=b'{"value": 1}\n{"valeu": 2}\n')
    assert result.code == 1
    assert "error: line 2: expected" in result.err
    assert "0 messages are published" in result.err
    assert cli("publish", "headrace.yaml", "order", "--value", "x").err.startswith(
        "error: there is no stream 'order'; did you mean 'orders'?"
    )


def test_a_store_that_is_not_there_is_said(cli: Cli) -> None:
    """Rather than an empty one made beside the real one."""
    result = cli("events", "headrace.yaml", "list")
    assert result.code == 1
    assert "error: there is no store at" in result.err
    assert not Path("store.db").exists()


def test_db_upgrade_makes_the_store(cli: Cli) -> None:
    """And does nothing the second time."""
    for _ in range(2):
        assert cli("db", "headrace.yaml", "upgrade").code == 0
    assert cli("events", "headrace.yaml", "list").err == "no events\n"


def test_events_are_listed_shown_and_filtered(cli: Cli) -> None:
    """As a table and as JSON, newest first; the payload only where one event is shown."""
    asyncio.run(fill(unit("eu", 1), unit("eu", 2, card="4111"), unit("old", 3)))
    rows = cli("events", "headrace.yaml", "list", "--json").json()
    assert [row["identity"].split(":")[0] for row in rows] == ["old", "eu", "eu"]
    assert [row["id"] for row in cli("events", "headrace.yaml", "list", "--trigger", "eu", "--json").json()] == [2, 1]
    assert cli("events", "headrace.yaml", "list", "--limit", "1", "--before", "3", "--json").json()[0]["id"] == 2
    table = cli("events", "headrace.yaml", "list").out
    assert "pending" in table
    assert "4111" not in table
    assert cli("events", "headrace.yaml", "show", "2", "--json").json()["payload"] == {"n": 2, "card": "4111"}
    assert "4111" in cli("events", "headrace.yaml", "show", rows[1]["identity"]).out
    assert cli("events", "headrace.yaml", "show", "99").err == "error: there is no event '99'\n"


def test_events_are_purged_and_forgotten_by_what_selects_them(cli: Cli) -> None:
    """The count is said; what is not selected stays."""
    asyncio.run(fill(unit("eu", 1), unit("eu", 2), unit("old", 3)))
    assert cli("events", "headrace.yaml", "purge", "1").err == "1 events were purged\n"
    assert cli("events", "headrace.yaml", "forget", "--trigger", "old").err.startswith("1 messages will be derived again")
    assert cli("events", "headrace.yaml", "retry", "--all").err == "0 events are pending again\n"
    states = {row["id"]: row["state"] for row in cli("events", "headrace.yaml", "list", "--json").json()}
    assert states == {1: "purged", 2: "pending", 3: "purged"}


def test_dead_letters_are_listed_shown_and_purged(cli: Cli) -> None:
    """With the original bytes, key and headers, and the reason."""
    message = Message(value=b"\xffbad", key=b"k", headers=(("h", b"v"),), id="m9", source="orders", timestamp=1.0)
    dead = Unit("eu", "orders", "m9", dead=DeadLetter("rejected", "no amount", message=message))
    asyncio.run(fill(dead))
    (row,) = cli("events", "headrace.yaml", "list", "--dead-letters", "--json").json()
    assert (row["cause"], row["reason"]) == ("rejected", "no amount")
    shown = cli("events", "headrace.yaml", "show", "--dead-letters", str(row["id"]), "--json").json()
    assert (shown["value"], shown["key"], shown["headers"]) == ("\\xffbad", "k", {"h": "v"})
    assert cli("events", "headrace.yaml", "purge", "--dead-letters", str(row["id"])).err == "1 dead letters were emptied\n"


def test_triggers_are_listed_paused_resumed_and_removed(cli: Cli) -> None:
    """What the configuration has and what the store has, with what a user made of it."""
    asyncio.run(fill())
    rows = {row["name"]: row for row in cli("triggers", "headrace.yaml", "list", "--json").json()}
    assert {name: row["state"] for name, row in rows.items()} == {"all": "new", "eu": "active", "old": "active"}
    assert rows["old"]["reason"] == "not in the configuration"
    for command, state in (("pause", "paused"), ("remove", "removed"), ("resume", "active")):
        assert cli("triggers", "headrace.yaml", command, "eu").err == f"eu is {state}\n"
        listed = {row["name"]: row["state"] for row in cli("triggers", "headrace.yaml", "list", "--json").json()}
        assert listed["eu"] == state


def test_an_unknown_trigger_changes_nothing(cli: Cli) -> None:
    """The nearest name is said; the others that were named are left alone."""
    asyncio.run(fill())
    assert (
        cli("triggers", "headrace.yaml", "pause", "eu", "odl").err
        == "error: there is no trigger 'odl' in the store; did you mean 'old'?\n"
    )
    assert cli("triggers", "headrace.yaml", "pause", "all").err.endswith("has not registered it yet\n")
    rows = cli("triggers", "headrace.yaml", "list", "--json").json()
    assert "paused" not in {row["state"] for row in rows}


def test_the_configuration_of_these_tests_is_right(cli: Cli) -> None:
    """It is loaded from the working directory like a user's."""
    assert set(load_config(Path("headrace.yaml")).triggers) == {"eu", "all"}

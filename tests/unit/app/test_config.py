"""A configuration as a whole: what it gives, and what it says of mistakes."""

import textwrap
from pathlib import Path

import pytest

from headrace.app.config import Config, load_config
from headrace.errors import ConfigError

pytestmark = pytest.mark.usefixtures("brook")

GOOD = """
streams:
  orders:
    connector: brook
    address: localhost:1
    topics: [orders]
triggers:
  audit:
    stream: orders
    class: brooktriggers:Audit
    kwargs: {level: high}
    target: {webhook: {url: "http://localhost:9000/"}}
"""


def load(tmp_path: Path, text: str, **environ: str) -> Config:
    path = tmp_path / "headrace.yaml"
    path.write_text(textwrap.dedent(text))
    return load_config(path, environ=environ)


def problems(tmp_path: Path, text: str, **environ: str) -> list[str]:
    """The mistakes, without the file's name (which each has)."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, **environ)
    prefix = f"{tmp_path}/headrace.yaml"
    assert all(problem.startswith(prefix) for problem in caught.value.problems)
    return [problem.removeprefix(prefix) for problem in caught.value.problems]


def replaced(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def test_a_configuration_is_loaded_with_its_defaults(tmp_path: Path) -> None:
    """What is not said has the documented default; what is said is split between the stream and its connector."""
    config = load(tmp_path, GOOD)
    stream = config.streams["orders"]
    assert stream.connector_name == "brook"
    assert stream.connector_config.model_dump()["topics"] == ["orders"]
    assert stream.settings.model_dump() == {
        "subscriber_queue_size": 1024,
        "ack_timeout": 300.0,
        "cohort_grace_period": 30.0,
        "queue_timeout": None,
        "overflow_grace": 5.0,
        "max_in_flight": 100_000,
        "max_in_flight_bytes": 256 * 2**20,
        "advance_timeout": 30.0,
        "advance_retries": 10,
        "close_timeout": 10.0,
        "max_attempts": 5,
    }
    assert (stream.acknowledge, stream.undecodable) == (True, "no_match")
    trigger = config.triggers["audit"]
    assert (trigger.stream, trigger.target, dict(trigger.kwargs)) == ("orders", "webhook", {"level": "high"})
    assert config.general.shutdown_timeout == 30
    assert config.general.dedupe_retention == 14 * 24 * 3600
    assert (config.http.host, config.http.port) == ("127.0.0.1", 8970)
    assert config.warnings == ()


def test_an_empty_configuration_is_one(tmp_path: Path) -> None:
    """A first `serve` may have nothing to do."""
    assert load(tmp_path, "").streams == {}


def test_a_stream_overrides_the_defaults(tmp_path: Path) -> None:
    """`defaults` are for all streams, the stream's own settings go before them."""
    config = load(tmp_path, replaced("topics", "ack_timeout: 7\n    topics") + "defaults: {ack_timeout: 5, max_attempts: 2}\n")
    assert (config.streams["orders"].settings.ack_timeout, config.streams["orders"].settings.max_attempts) == (7, 2)


def test_airflow_names_are_taken_in_defaults_and_from_its_environment(tmp_path: Path) -> None:
    """Airflow's spelling works in `defaults`; a variable of Airflow's section gives way to the file."""
    variables = {
        "AIRFLOW__TRIGGERER__SHARED_STREAM_ACK_TIMEOUT": "60",
        "AIRFLOW__TRIGGERER__SHARED_STREAM_SUBSCRIBER_QUEUE_SIZE": "10",
        "AIRFLOW__TRIGGERER__SHARED_STREAM_COHORT_GRACE_PERIOD": "1.5",
    }
    text = GOOD + "defaults: {shared_stream_ack_timeout: 90, subscriber_queue_size: 20}\n"
    settings = load(tmp_path, text, **variables).streams["orders"].settings
    assert (settings.ack_timeout, settings.subscriber_queue_size, settings.cohort_grace_period) == (90, 20, 1.5)


def test_a_setting_under_both_its_names_is_a_mistake(tmp_path: Path) -> None:
    """Which one counts would be a guess."""
    found = problems(tmp_path, GOOD + "defaults: {shared_stream_ack_timeout: 90, ack_timeout: 90}\n")
    assert found == [":13: defaults.shared_stream_ack_timeout: is another name of 'ack_timeout', which is given too"]


def test_a_wrong_airflow_variable_is_named(tmp_path: Path) -> None:
    """The mistake is in the environment, and says so."""
    found = problems(tmp_path, GOOD, AIRFLOW__TRIGGERER__SHARED_STREAM_ACK_TIMEOUT="soon")
    assert found == [": the environment variable AIRFLOW__TRIGGERER__SHARED_STREAM_ACK_TIMEOUT: expected a number, found text"]


def test_a_mistake_is_named_once(tmp_path: Path) -> None:
    """A wrong name of a stream, and a trigger that watches it."""
    found = problems(tmp_path, GOOD.replace("orders:", "or ders:").replace("stream: orders", "stream: or ders"))
    assert [problem.split(": ")[1] for problem in found] == ["streams.or ders", "triggers.audit.stream"]


def test_three_mistakes_are_all_named(tmp_path: Path) -> None:
    """Each has the file, the line, the key and the nearest right name."""
    text = """
    storre: {url: x}
    streams:
      orders: {connector: brook, address: a, topcis: [orders], topics: [orders], ack_timout: 3}
    triggers:
      audit: {stream: order, class: "brooktriggers:Audti", target: {webhok: {url: "http://localhost/"}}}
    """
    assert sorted(problems(tmp_path, text)) == sorted(
        [
            ":2: storre: unknown key; did you mean 'store'?",
            ":4: streams.orders.topcis: unknown key; did you mean 'topics'?",
            ":4: streams.orders.ack_timout: unknown key; did you mean 'ack_timeout'?",
            ":6: triggers.audit.stream: there is no stream of this name; did you mean 'orders'?",
            ":6: triggers.audit.class: brooktriggers:Audti: 'brooktriggers' has no 'Audti'; did you mean 'Audit'?",
            ":6: triggers.audit.target.webhok: unknown target; did you mean 'webhook'? (expected exactly one of "
            "callable, log, webhook)",
        ]
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("connector: brook", "connector: broook", "streams.orders.connector: unknown connector 'broook'"),
        (
            "connector: brook",
            "connector: broken",
            "orders.connector: the connector 'broken' cannot be imported: ModuleNotFoundError",
        ),
        ("connector: brook", "ack_timeout: 3", "streams.orders.connector: this key is required"),
        ("topics: [orders]", "topics: 3", "streams.orders.topics: expected a list or text, found a number"),
        ("topics: [orders]", "topics: [3]", "streams.orders.topics"),
        (
            "topics: [orders]",
            "topics: []\n    tls: {ca: x, ca_file: y}",
            "streams.orders.tls.ca: unknown key; did you mean 'ca_file'?",
        ),
        ("topics: [orders]", "topics: []\n    ack_timeout: 0", "streams.orders.ack_timeout: must be more than 0"),
        ("topics: [orders]", "topics: []\n    ack_timeout: .nan", "streams.orders.ack_timeout: expected a finite number"),
        (
            "topics: [orders]",
            "topics: []\n    ack_timeout: 50000",
            "streams.orders: ack_timeout is beyond the brook's twelve hours",
        ),
        ("topics: [orders]", "topics: []\n    undecodable: rejct", "expected 'no_match' or 'reject'; did you mean 'reject'?"),
        (
            "topics: [orders]",
            "topics: []\n    acknowledge: perhaps",
            "streams.orders.acknowledge: expected true or false, found text",
        ),
        ("address: localhost:1", "subscriber_queue_size: 1", "streams.orders.address: this key is required"),
        ("  orders:", "  -orders:", "streams.-orders: a name has 1 to 100 letters"),
        (
            "class: brooktriggers:Audit",
            "class: nomodule:X",
            "importing 'nomodule' failed: ModuleNotFoundError: No module named 'nomodule'",
        ),
        (
            "class: brooktriggers:Audit",
            "class: nonsense",
            "triggers.audit.class: 'nonsense' is no import path: expected package.module:Class",
        ),
        ("class: brooktriggers:Audit", "class: brooktriggers:function", "'function' is no subclass of headrace.BaseTrigger"),
        (
            "class: brooktriggers:Audit",
            "class: brooktriggers:Tick",
            "'Tick' has no filter_shared_stream, so it cannot watch a stream",
        ),
        (
            "class: brooktriggers:Audit",
            "class: brokentriggers.X",
            "importing 'brokentriggers' failed: RuntimeError: half a module",
        ),
        (
            "kwargs: {level: high}",
            "kwargs: {levle: high}",
            "triggers.audit.kwargs.levle: Audit takes no such argument; did you mean 'level'?",
        ),
        ("kwargs: {level: high}", "kwargs: {level: wrong}", "triggers.audit.kwargs: Audit does not take them: ValueError"),
        ("kwargs: {level: high}", "match: {a: [1]}", "triggers.audit: give `match` or `class`, not both"),
        ("class: brooktriggers:Audit", "", "triggers.audit: give `match` (a pattern) or `class`"),
        (
            '{webhook: {url: "http://localhost:9000/"}}',
            "{}",
            "triggers.audit.target: expected exactly one of callable, log, webhook, found none",
        ),
        ('{webhook: {url: "http://localhost:9000/"}}', "{log: {}, webhook: {url: 'http://x/'}}", "found log, webhook"),
        (
            '{webhook: {url: "http://localhost:9000/"}}',
            "{webhook: {}}",
            "triggers.audit.target.webhook.url: this key is required",
        ),
        (
            '{webhook: {url: "http://localhost:9000/"}}',
            "{callable: {function: 'brooktriggers:nope'}}",
            "triggers.audit.target.callable",
        ),
        (
            '{webhook: {url: "http://localhost:9000/"}}',
            "{log: {timeout: 31}}",
            "triggers.audit.target: its timeout of 31 s must be shorter than the dispatcher's lease_seconds, 30",
        ),
        ("target:", "targt:", "triggers.audit.targt: unknown key; did you mean 'target'?"),
    ],
)
def test_each_mistake_is_named_with_its_place(tmp_path: Path, old: str, new: str, expected: str) -> None:
    """One wrong thing gives a line that says where it is and what would be right."""
    assert any(expected in problem for problem in problems(tmp_path, replaced(old, new)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http: {host: 0.0.0.0}", "http: a token is required when http.host is not a loopback address"),
        ("http: {token: ''}", "http: http.token is empty"),
        ("http: {port: 70000}", "http.port: must be at most 65535"),
        ("http: nothing", "http: expected a mapping, found text"),
        ("- a list", "expected a mapping with keys such as `streams` and `triggers`"),
        ("streams: [orders]", "streams: expected a mapping of names"),
        ("streams: {orders: brook}", "streams.orders: expected a mapping with a `connector`, found text"),
        ("triggers: {t: 1}", "triggers.t: expected a mapping, found a number"),
        ("shutdown_timeout: fast", "shutdown_timeout: expected a number, found text"),
        ("store: {secret_keys: [nonsense]}", "store.secret_keys: key 0 is not a Fernet key"),
        ("store: {url: 'mysql://x'}", "store.url: expected sqlite:///FILE or postgresql://"),
        ("triggers: {t: {class: brooktriggers.Unfinished, target: {log: {}}}}", "'Unfinished' does not implement run"),
        (
            "triggers: {t: {class: brooktriggers.Tick, target: {log: {}}}}",
            "triggers.t.kwargs.seconds: Tick requires this argument",
        ),
        ("triggers: {t: {match: {a: [1]}, target: {log: {}}}}", "`match` needs `stream`"),
    ],
)
def test_a_section_that_is_wrong_is_named(tmp_path: Path, text: str, expected: str) -> None:
    """The same for what is no stream."""
    assert any(expected in problem for problem in problems(tmp_path, text))


def test_a_trigger_that_cannot_be_stored_is_a_mistake(tmp_path: Path) -> None:
    """It is built, serialized and built again: what does not come back equal would be another trigger after a restart."""
    text = "triggers: {t: {class: brooktriggers.Forgetful, kwargs: {size: 3}, target: {log: {}}}}"
    (problem,) = problems(tmp_path, text)
    assert "triggers.t.kwargs: brooktriggers.Forgetful: built again from its serialize(), it has another 'size'" in problem


def test_a_pattern_is_checked_where_it_stands(tmp_path: Path) -> None:
    """The place within the pattern is part of the key path."""
    text = replaced("class: brooktriggers:Audit", "match: {amount: [{numerc: ['>', 1]}]}").replace(
        "    kwargs: {level: high}\n", ""
    )
    (problem,) = problems(tmp_path, text)
    assert problem.startswith(":10: triggers.audit.match.amount[0].numerc: unknown operator")


def test_a_host_beyond_loopback_is_fine_with_a_token(tmp_path: Path) -> None:
    """IPv6 and names of loopback need none."""
    assert load(tmp_path, "http: {host: '::', token: '${TOKEN}'}", TOKEN="t").http.token is not None
    for host in ("localhost", "::1", "127.0.0.2"):
        assert load(tmp_path, f"http: {{host: '{host}'}}").http.token is None


def test_numbers_from_the_environment_are_numbers(tmp_path: Path) -> None:
    """Where a number is expected, a variable's text is taken as one."""
    assert load(tmp_path, "http: {port: '${PORT:-8971}'}").http.port == 8971


def test_a_connectors_warning_does_not_stop_it(tmp_path: Path) -> None:
    """It is kept with the place it belongs to."""
    config = load(tmp_path, replaced("topics", "queue_timeout: 700\n    topics"))
    assert config.warnings == ("streams.orders: the brook forgets after ten minutes",)


def test_secrets_are_in_no_message_and_no_repr(tmp_path: Path) -> None:
    """Wrong or right, from a file, the environment or the text itself."""
    (tmp_path / "secret").write_text("hunter2")
    text = replaced("kwargs: {level: high}", "kwargs: {level: wrong, password: 'file:secret'}")
    text = text.replace("topics: [orders]", "topics: [orders]\n    password: {hunter2: 1}\n    ack_timeout: ${S}")
    found = problems(tmp_path, text, S="hunter2")
    assert len(found) == 3
    assert not any("hunter2" in problem.replace("password.hunter2", "") for problem in found)
    good = replaced("topics:", "password: file:secret\n    topics:").replace("level: high", "password: '${S}'")
    good += "store: {url: 'postgresql://u:hunter2@h/d'}\nhttp: {token: hunter2}\n"
    config = load(tmp_path, good, S="hunter2")
    assert "hunter2" not in repr(config)


def test_open_secrets_in_kwargs_are_warned_of(tmp_path: Path) -> None:
    """Kwargs are stored: without `store.secret_keys` in the clear."""
    text = replaced("level: high", "password: '${S}'")
    (warning,) = load(tmp_path, text, S="x").warnings
    assert warning.startswith("triggers.audit.kwargs: may hold secrets")
    key = "store: {secret_keys: ['QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU=']}\n"
    assert load(tmp_path, text + key, S="x").warnings == ()


def test_what_did_not_change_is_equal(tmp_path: Path) -> None:
    """Two readings of one text compare equal, part by part, so that a reload restarts only what changed."""
    first, second = load(tmp_path, GOOD), load(tmp_path, replaced("level: high", "level: low"))
    assert first.streams == second.streams
    assert first.triggers["audit"] != second.triggers["audit"]

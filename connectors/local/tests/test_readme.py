"""The README is true: its options are the schema's, its commands and its example work."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from headrace_local import LocalConfig, QueueFile
from headrace_local.__main__ import main
from headrace_local.queue_file import Settlement

from headrace.testing.conformance import messages
from headrace.testing.readme import is_current

README = Path(__file__).parents[1] / "README.md"


def test_the_options_are_those_of_the_schema() -> None:
    """Remake the table with `headrace.testing.readme.update`."""
    assert is_current(README, LocalConfig)


def test_the_example_publishes(tmp_path: Path) -> None:
    """The README's Python code puts an order into the queue."""
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    with closing(QueueFile(str(tmp_path / "orders.db"))) as file:
        (order,) = file.waiting("orders")
    assert (order.json(), order.key) == ({"amount": 7}, b"customer 1")


def test_the_commands_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`stats`, `dead` and `redrive` do what they say on a queue with a dead letter."""
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(line)[3:] for line in re.findall(r"^python -m headrace_local .*$", README.read_text(), re.MULTILINE)]
    assert [command[1] for command in commands] == ["stats", "dead", "redrive"]
    assert main(commands[0]) == 1, "there is no file yet, and none is made"
    assert "no file" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    with closing(QueueFile("orders.db")) as file:
        file.publish("orders", messages(1))
        owner = file.register("orders", 10)
        ((_, receipt),) = file.claim("orders", owner, 1, after=0, limit=1, held=[], unordered=True).events
        file.settle("orders", owner, Settlement(dead=[(receipt.id, 1, "audit: bad")]))
    assert [main(command) for command in commands] == [0, 0, 0]
    stats, dead, redriven = capsys.readouterr().out.splitlines()
    assert json.loads(stats)["dead"] == 1
    assert json.loads(dead)["reason"] == "audit: bad"
    assert redriven == "1 messages published again"
    Path("orders.db").write_text("this is not a database, and it is longer than a header of one hundred bytes: " + "." * 100)
    assert main(commands[0]) == 1
    assert "not a queue file" in capsys.readouterr().err

"""An environment with a connector and a user's module of its own."""

from pathlib import Path

import pytest

CONNECTOR = '''
from headrace.connector import Connector
from headrace.streams.contract import Capabilities
from pydantic import BaseModel, ConfigDict, SecretStr

class Tls(BaseModel):
    model_config = ConfigDict(extra="forbid")
    ca_file: str

class BrookConfig(BaseModel):
    """The brook's own keys."""
    model_config = ConfigDict(extra="forbid")
    address: str
    topics: list[str] | str
    password: SecretStr | None = None
    tls: Tls | None = None

class Brook(Connector):
    name = "brook"
    Config = BrookConfig
    capabilities = Capabilities()

    def create_producer(self, config):
        raise NotImplementedError

    async def publish(self, config, messages):
        raise NotImplementedError

    def check(self, config, stream_settings):
        if stream_settings["ack_timeout"] > 43200:
            yield "ack_timeout is beyond the brook's twelve hours"
        if stream_settings["queue_timeout"] > 600:
            yield "warning: the brook forgets after ten minutes"

CONNECTOR = Brook()
'''

TRIGGERS = """
from headrace.triggers.base import BaseEventTrigger, BaseTrigger

class Audit(BaseEventTrigger):
    def __init__(self, level="low", *, password=None):
        if level == "wrong":
            raise ValueError(f"no such level, and {password} is no help")
        super().__init__()

    def serialize(self):
        return ("brooktriggers.Audit", {})

    async def filter_shared_stream(self, shared_stream):
        async for event in shared_stream:
            yield event

class Tick(BaseTrigger):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def serialize(self):
        return ("brooktriggers.Tick", {"seconds": self.seconds})

    async def run(self):
        yield None

class Forgetful(Tick):
    def __init__(self, size=0):
        super().__init__(size)
        self.size = size

    def serialize(self):
        return ("brooktriggers.Forgetful", {"size": self.size + 1})

class Unfinished(BaseTrigger):
    def serialize(self):
        return ("brooktriggers.Unfinished", {})

def function(event):
    pass
"""


@pytest.fixture
def brook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the connector `brook` and the module `brooktriggers`, as a stranger's distribution would be."""
    site = tmp_path / "site"
    info = site / "headrace_brook-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: headrace-brook\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[headrace.connectors]\nbrook = headrace_brook:CONNECTOR\nbroken = no_such_module:X\n")
    (site / "headrace_brook.py").write_text(CONNECTOR)
    (site / "brooktriggers.py").write_text(TRIGGERS)
    (site / "brokentriggers.py").write_text("import os\n\nraise RuntimeError('half a module')\n")
    monkeypatch.syspath_prepend(site)
    return site

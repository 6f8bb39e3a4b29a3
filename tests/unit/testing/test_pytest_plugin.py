"""The fixtures where no server is to be had, and what the summary says; where there are some, `tests/integration/testing`."""

from pathlib import Path

import pytest

from headrace.testing.brokers import postgresql

TESTS = """
    def test_kafka(kafka): ...
    def test_own(own_server): own_server("postgresql")
    def test_mock(mock_kafka): mock_kafka.create_topic("orders")
    def test_database(database_url): assert database_url.startswith("sqlite:///")
"""


@pytest.fixture
def bare(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.Pytester:
    """A test run on a machine that has no server and no way to one."""
    for name in ("HEADRACE_KAFKA", "HEADRACE_POSTGRESQL", "HEADRACE_REQUIRE_BROKERS", "JAVA_HOME", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    monkeypatch.setattr(postgresql, "DEBIAN", tmp_path / "no-debian")
    pytester.makepyfile(TESTS)
    pytester.makeini("[pytest]\nmarkers = integration: needs a server")
    return pytester


def run(pytester: pytest.Pytester) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "no:asyncio", "-p", "headrace.testing.pytest_plugin")


def test_what_lacks_its_server_is_skipped_and_the_summary_says_why(bare: pytest.Pytester) -> None:
    """The rest runs; the servers that were used are named, and so is every reason."""
    result = run(bare)
    result.assert_outcomes(passed=2, skipped=3)
    result.stdout.fnmatch_lines(
        [
            "*= servers =*",
            "mock kafka: the mock cluster of librdkafka *",
            "2 skipped: no PostgreSQL: HEADRACE_POSTGRESQL is not set; no Docker engine *; initdb is not installed*",
            "1 skipped: no Apache Kafka: HEADRACE_KAFKA is not set; no Docker engine *; java is not installed*",
        ]
    )


def test_a_required_server_is_not_skipped(bare: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """`HEADRACE_REQUIRE_BROKERS` turns the skip into a failure, of the servers it names alone."""
    monkeypatch.setenv("HEADRACE_REQUIRE_BROKERS", "kafka")
    result = run(bare)
    result.assert_outcomes(passed=2, skipped=2, errors=1)
    result.stdout.fnmatch_lines(["*HEADRACE_REQUIRE_BROKERS names kafka, but there is no Apache Kafka*"])


def test_a_run_without_servers_says_so(bare: pytest.Pytester) -> None:
    """Nothing used and nothing skipped is said too."""
    bare.makepyfile("def test_plain(): ...")
    result = bare.runpytest_inprocess("-p", "no:asyncio", "-p", "headrace.testing.pytest_plugin", "-k", "plain")
    result.stdout.fnmatch_lines(["none: no test asked for one that could be had", "skipped: nothing"])

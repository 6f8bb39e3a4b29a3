"""A server as a process of ours, shown on a small one: a shell."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from headrace.testing.brokers.process import LocalProcess, find_program, free_port
from headrace.testing.brokers.server import BrokerUnavailable
from headrace.testing.waiting import wait_until


def shell(script: str) -> LocalProcess:
    """A server that runs this script with its folder as the working directory."""
    return LocalProcess("shell", ["sh", "-c", script])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_its_folder_outlives_a_stop_and_a_kill_and_goes_with_close() -> None:
    """Data stays until close, whichever way the process ended."""
    server = shell("echo $$ >> started; exec sleep 1000")
    for end in (server.stop, server.kill):
        server.start()
        assert server.is_running()
        end()
        assert not server.is_running()
    assert server.folder.is_dir()
    server.close()
    assert not server.folder.exists()


def test_stop_is_clean_and_kill_is_not() -> None:
    """Stop sends the signal that the server's manual names; kill gives it no chance."""
    server = shell("trap 'echo clean > ended; exit' TERM; echo ready > ready; while :; do sleep 0.05; done")
    ready, ended = server.folder / "ready", server.folder / "ended"
    try:
        for end, is_clean in ((server.stop, True), (server.kill, False)):
            ready.unlink(missing_ok=True)
            ended.unlink(missing_ok=True)
            server.start()
            wait_until(ready.exists)
            end()
            assert ended.exists() == is_clean
    finally:
        server.close()


def test_ends_that_come_twice_do_nothing() -> None:
    """Stop, kill and close bear a server that is not there."""
    server = shell("exit 0")
    server.stop()
    server.start()
    server.kill()
    server.stop()
    server.close()
    server.close()


def test_the_log_is_the_end_of_what_it_printed() -> None:
    """What goes to either stream is kept, over restarts; the last lines are shown."""
    server = shell("seq 1 50; echo bad news >&2; exit 1")
    try:
        assert server.log() == ""
        server.start()
        wait_until(lambda: not server.is_running())
        assert server.log().splitlines()[-2:] == ["50", "bad news"]
        assert len(server.log().splitlines()) == 20
    finally:
        server.close()


def test_a_server_does_not_outlive_us(tmp_path: Path) -> None:
    """Killed by SIGKILL, we leave neither the server nor its folder behind."""
    script = textwrap.dedent(
        """
        import signal, sys
        from headrace.testing.brokers.process import LocalProcess
        server = LocalProcess("shell", ["sh", "-c", "echo $$ > pid; exec sleep 1000"])
        server.start()
        print(server.folder, flush=True)
        signal.pause()
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as us:
        assert us.stdout is not None
        folder = Path(us.stdout.readline().strip())
        wait_until(lambda: (folder / "pid").is_file() and (folder / "pid").read_text().strip() != "")
        pid = int((folder / "pid").read_text())
        assert is_alive(pid)
        us.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_alive(pid))
    wait_until(lambda: not folder.exists())


def test_a_tool_that_fails_says_why() -> None:
    """What a tool printed is in the reason."""
    server = shell("exit 0")
    try:
        assert server.run(["echo", "fine"]) == "fine\n"
        with pytest.raises(BrokerUnavailable, match="no space"):
            server.run(["sh", "-c", "echo no space; exit 3"])
        with pytest.raises(BrokerUnavailable, match="no-such-tool"):
            server.run(["no-such-tool"])
    finally:
        server.close()


def test_a_free_port_is_not_one_of_the_systems_choice() -> None:
    """Outgoing connections get theirs from 32768 on, so none of them can take a server's port while it restarts."""
    assert all(12_000 <= free_port() < 32_000 for _ in range(20))


def test_a_missing_program_is_named() -> None:
    """The reason says what is missing, and for what."""
    assert Path(find_program("no-such-program", "sh", purpose="a shell")).name == "sh"
    with pytest.raises(BrokerUnavailable, match=r"no-such-program is not installed \(for weaving\)"):
        find_program("no-such-program", purpose="for weaving")

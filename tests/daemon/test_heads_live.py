"""Two real daemons on one database: killed, handed over, frozen; what `hpctl` says of it."""

import json
import signal
import subprocess
import sys
import time
from urllib.request import urlopen

import pytest

from tests.engine.journal.servers import MariaDB
from tests.process import free_port
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]


class LiveHead:
    """One `hpctl daemon run`. There is no Slurm: it leads, and cannot act."""

    def __init__(self, home, name, url, port, munge):
        self.config, self.log, self.port = home / f"{name}.yaml", home / f"{name}.log", port
        self.address = f"127.0.0.1:{port}"
        intake = {"listen": self.address, "advertise": self.address, "munge_socket": str(munge)}
        self.settings = {
            "state_dir": str(home / name), "database_url": url, "kill_switch": str(home / "STOP"),
            "slurm": {"bin": str(home), "adapter": "cli"}, "intake": intake,
        }  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, heads: list[str]) -> None:
        self.config.write_text(json.dumps(self.settings | {"heads": heads}))
        command = [sys.executable, "-m", "hpctl", "daemon", "run", "--config", str(self.config)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def leads(self) -> bool | None:
        """What its metrics say; None where it does not answer."""
        try:
            with urlopen(f"http://{self.address}/metrics", timeout=2) as answer:
                text = answer.read().decode()
        except OSError:
            return None
        return "hpctl_leader 1.0" in text if "hpctl_leader " in text else None

    def signal(self, number: signal.Signals) -> float:
        self.process.send_signal(number)
        return time.monotonic()

    def hpctl(self, *args: str) -> tuple[int, dict[str, object]]:
        command = [sys.executable, "-m", "hpctl", *args, "--json", "--config", str(self.config)]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)


@pytest.fixture
def heads(tmp_path, munges):
    server = MariaDB()
    url = server.fresh()
    pair = [LiveHead(tmp_path, f"h{n}", url, free_port(), munges.head) for n in (1, 2)]
    try:
        yield pair
    finally:
        for head in pair:
            if head.process is not None:
                head.process.kill()
                head.process.wait()
        server.stop()


@pytest.mark.timeout(300)
def test_a_standby_takes_over_and_hands_back(heads: list[LiveHead]) -> None:
    first, second = heads
    both = [f"http://{head.address}" for head in heads]
    first.start(both)
    until(lambda: first.leads() is True, 40)
    second.start(both)
    until(lambda: second.leads() is False, 40)
    until(lambda: first.hpctl("daemon", "failover", "--dry-run")[0] == 0, 10)
    _, shown = second.hpctl("status")
    assert shown["daemon"]["address"] == first.address
    (standby,) = shown["standbys"]
    assert (standby["address"], standby["behind"]) == (second.address, 0)

    killed = first.signal(signal.SIGKILL)
    until(lambda: second.leads() is True, 30)
    print(f"\nkilled: {time.monotonic() - killed:.2f} s")
    first.process.wait()
    first.start(both)
    until(lambda: first.leads() is False, 40)

    code, refused = first.hpctl("daemon", "failover", "--to", "nowhere")
    assert (code, refused["ok"]) == (1, False)
    assert "no standby is ready there" in str(refused["answer"])
    asked = time.monotonic()
    code, done = first.hpctl("daemon", "failover", "--to", first.address, "--wait")
    took = time.monotonic() - asked
    print(f"handed over: {took:.2f} s with the command's own start")
    assert (code, done["done"]) == (0, True), done
    assert first.leads() is True
    until(lambda: second.leads() is False, 40)
    assert second.process.poll() is None
    _, audit = first.hpctl("journal", "audit")
    rows = [(row["what"], row["ok"]) for row in audit["entries"]]
    assert ("failover nowhere", False) in rows
    assert (f"failover {first.address}", True) in rows

    for head in heads:
        head.signal(signal.SIGTERM)
        assert head.process.wait(60) == 0, head.log.read_text()
    code, shown = first.hpctl("status")
    assert (shown["daemon"]["alive"], shown["standbys"]) == (False, [])
    assert "no leader since" in str(shown["unknowns"])

"""The real agent as a process of its own, with a log and a boot that a test writes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from hpctl.detection.kmsg import format_kmsg_record
from hpctl.faults.table import CHECKS
from tests.waiting import PATIENCE_S, until

GPU = "PCI:0000:c1:00"


class AgentProcess:
    """`hpctl agent run` on a stand-in kernel log, with everything in one directory."""

    def __init__(self, directory: Path, head: str, munged: Path) -> None:
        self.kmsg, self.boot = directory / "kmsg", directory / "boot_id"
        self.log_path = directory / "agent.log"
        self.kmsg.touch()
        self.boot.write_text("boot-1\n")
        # What this machine itself suffers from is not what these tests are about.
        config = directory / "agent.yaml"
        off = {spec.name: {"enabled": False} for spec in CHECKS}
        config.write_text(json.dumps({"checks": off}))
        self.environment = {
            **os.environ, "HPCTL_AGENT_HEAD": head, "HPCTL_AGENT_NODE": "n1",
            "HPCTL_AGENT_INSTANCE_ID": "i-0123456789abcdef0",
            "HPCTL_AGENT_BOOT_ID_FILE": str(self.boot), "HPCTL_AGENT_KMSG": str(self.kmsg),
            "HPCTL_AGENT_MUNGE_SOCKET": str(munged), "HPCTL_AGENT_SPOOL": str(directory / "spool"),
            "HPCTL_AGENT_SOCKET": str(directory / "agent.sock"), "HPCTL_AGENT_CONFIG": str(config),
            "HPCTL_AGENT_HEARTBEAT_S": "60", "HPCTL_AGENT_METRICS": "",
        }  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None
        self._seq = 0

    def start(self, **environment: str) -> AgentProcess:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hpctl", "agent", "run"],
                env={**self.environment, **environment},
                stdout=log,
                stderr=log,
            )
        return self

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        self.process = None
        return code

    def kernel_says(self, *texts: str, priority: int = 4) -> None:
        records = []
        for text in texts:
            self._seq += 1
            records.append(format_kmsg_record(text, self._seq, priority))
        with self.kmsg.open("ab") as file:
            file.write(b"".join(records))

    def xid(self, code: int, text: str = "trouble") -> None:
        self.kernel_says(f"NVRM: Xid ({GPU}): {code}, {text}")

    def log(self) -> str:
        return self.log_path.read_text()

    def wait_for_spool(self, text: str) -> None:
        state = Path(self.environment["HPCTL_AGENT_SPOOL"]) / "state.json"
        until(lambda: state.exists() and text in state.read_text())

    def memory_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1])

"""Programs in place of hpctl and Slurm's: what they were asked, and what they are to say."""

import json
import os
from pathlib import Path

_STUB = """#!/bin/sh
printf '%s\\n' "$*" >> {calls}
cat {out}
cat {err} >&2
exit $(cat {code})
"""


class Stub:
    """One program. It says the same until it is told otherwise."""

    def __init__(self, where: Path, name: str) -> None:
        self.path = where / name
        self._calls, self._out, self._err, self._code = (
            where / f"{name}.{part}" for part in ("calls", "out", "err", "code")
        )
        self._calls.touch()
        self.say("")
        text = _STUB.format(calls=self._calls, out=self._out, err=self._err, code=self._code)
        self.path.write_text(text)
        self.path.chmod(0o755)

    def say(self, out: object, err: str = "", code: int = 0) -> None:
        """Say a text, or an object as JSON, from now on."""
        self._out.write_text(out if isinstance(out, str) else json.dumps(out))
        self._err.write_text(err)
        self._code.write_text(str(code))

    @property
    def calls(self) -> list[str]:
        """The words of each call."""
        return self._calls.read_text().splitlines()


class Programs:
    """hpctl, squeue and sacct, first on PATH."""

    def __init__(self, where: Path, monkeypatch) -> None:
        self.hpctl = Stub(where, "hpctl")
        self.squeue = Stub(where, "squeue")
        self.sacct = Stub(where, "sacct")
        self.sacct.say("", "Slurm accounting storage is disabled", 1)
        monkeypatch.setenv("PATH", f"{where}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.delenv("HPCTL_COMMAND", raising=False)
        monkeypatch.delenv("HPCTL_SLURM_BIN", raising=False)


def queued(job: str, state: str, status: object = 0, restarts: int = 0, reason: str = "") -> str:
    """Return squeue's line of a job."""
    return f"{job:40}{state:24}{status!s:12}{restarts!s:12}{reason:40}\n"

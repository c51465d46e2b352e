"""Files of /proc that tests write."""

import os
from pathlib import Path


def add_slurmstepd(process: Path, program: Path, *, uids: str = "") -> None:
    """Make a process, named by its directory in a test's /proc, one that runs `program` as this
    user: the step daemon of Slurm where that is its program's name."""
    process.mkdir(parents=True, exist_ok=True)
    (process / "comm").write_text("slurmstepd\n")
    ids = uids or "\t".join([str(os.geteuid())] * 4)
    (process / "status").write_text(f"Name:\tslurmstepd\nUid:\t{ids}\n")
    program.parent.mkdir(parents=True, exist_ok=True)
    program.touch()
    program.chmod(0o755)
    (process / "exe").symlink_to(program)

"""Ask the processes of a step on one node to save: `python ... save_request NUMBER STEP`.

The signal goes to those processes of the step that have a handler for it: it would end any other.
srun starts one such task on each node of the step.
"""

import contextlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from hpctl.checkpoints.fast.spec import HELPER
from hpctl.jobs.job_processes import (
    JobProcess,
    has_signal_handler,
    is_same_cluster_process,
    list_process_ids,
    read_job_process,
)
from hpctl.toolkit.bounds import make_printable

MODULE: Final = "hpctl.jobs.run.save_request"
_ANSWER: Final = re.compile(r"^hpctl-save-request (\d{1,7})$", re.MULTILINE)


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Send the signal, and print to how many processes. Always 0."""
    number, step = int(arguments[0]), arguments[1]
    asked = 0
    for pid in list_process_ids():
        process = read_job_process(pid, os.geteuid(), environ.get("SLURM_JOB_ID", ""))
        if (
            process is None
            or not _is_step_process(process, step, environ)
            or not has_signal_handler(pid, number)
        ):
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            asked += 1
    print(make_printable(f"hpctl-save-request {asked}"))
    return 0


def _is_step_process(process: JobProcess, step: str, environ: Mapping[str, str]) -> bool:
    """Return whether a process is one of the step, on this node, and no helper of hpctl's."""
    node = environ.get("SLURMD_NODENAME", "")
    return (
        process.env.get("SLURM_STEP_ID") == step
        and process.env.get("SLURMD_NODENAME", node) == node
        and HELPER not in process.env
        and is_same_cluster_process(process.env)
    )


def parse_count_of_signaled_processes(text: str) -> int | None:
    """Return how many processes were asked, by what all nodes printed; None where none did."""
    found = [int(match[1]) for match in _ANSWER.finditer(text)]
    return sum(found) if found else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))

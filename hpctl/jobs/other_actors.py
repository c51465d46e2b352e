"""What else may stop or restart jobs on this cluster, for `hpctl doctor`."""

from collections.abc import Iterator
from pathlib import Path

from hpctl.jobs.sbatch.submit import HANG_RULES
from hpctl.toolkit.checks_view import CheckView

HYPERPOD = Path("opt/sagemaker_cluster")
"""There on HyperPod's nodes; AWS's own scripts look for it before they say --auto-resume."""


def check_conflicting_restart_tools(root: Path = Path("/")) -> Iterator[CheckView]:
    """Find HyperPod's other actors that stop or restart jobs, where they are on for all users."""
    for path in (root / "etc/environment", *sorted((root / "etc/profile.d").glob("*.sh"))):
        try:
            is_set = HANG_RULES in path.read_text(errors="replace")
        except OSError:
            continue
        if is_set:
            what = f"{path} sets {HANG_RULES} for every job: HyperPod's agent may cancel hung ones"
            hint = "take it out: hpctl run finds hangs and restarts, and a cancelled job stays so"
            yield CheckView("hung-job agent", "warn", what, hint)
    if (root / HYPERPOD).is_dir():
        what = "srun --auto-resume=1 has HyperPod requeue a job that hpctl requeues as well"
        hint = "leave it out of job scripts: hpctl sbatch warns of it"
        yield CheckView("auto-resume", "note", what, hint)

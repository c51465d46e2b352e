"""Has a script that starts again say in its log why its last run ended, where the daemon knows.

The lines that `hpctl sbatch` puts into a script run it, as the job's owner, where hpctl does not
look for a checkpoint: `python ... hpctl.jobs.run.script_start`. Nothing here raises, and the answer
is not waited for.
"""

import os
import sys

from hpctl.wire.job_report_client import send_run_start_report


def main() -> int:
    """Report the start. Always 0."""
    send_run_start_report(os.environ, step=None, place="")
    return 0


if __name__ == "__main__":
    sys.exit(main())

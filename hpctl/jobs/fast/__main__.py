"""`python -m hpctl.jobs.fast start|serve`: what the preamble and srun run."""

import os
import sys
from pathlib import Path

from hpctl.core.bounds import printable
from hpctl.errors import HpctlError
from hpctl.jobs.fast import serve
from hpctl.jobs.fast.spec import ENVIRONMENT, read
from hpctl.jobs.fast.start import TooLarge, start


def main() -> int:
    """The exit code is never the job's: 1 for a start that ends it. A helper that is off ends
    with 0, for it is not to be started again."""
    try:
        if sys.argv[1] == "start":
            print(printable(start(os.environ)))
        else:
            spec = read(Path(os.environ[ENVIRONMENT]))
            serve.serve(spec, os.environ.get("SLURMD_NODENAME") or os.uname().nodename)
    except TooLarge as error:
        serve.say(f"{error} {error.hint}")
        print("stop")
        return 1
    except (HpctlError, OSError) as error:
        serve.say(f"off: {error} {getattr(error, 'hint', '')}".strip())
    return 0


if __name__ == "__main__":
    sys.exit(main())

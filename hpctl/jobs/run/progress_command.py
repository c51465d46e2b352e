"""`hpctl checkpoint progress`: `hpctl.progress` as one file, for where hpctl is not installed."""

import inspect

import click

from hpctl import progress as reporter
from hpctl.toolkit import output, token_bucket

_IMPORT = "from .toolkit.token_bucket import TokenBucket\n"


@click.command(short_help="Print a file that reports a run's progress.")
def progress() -> None:
    """Print a file with which a program reports its progress where hpctl is not installed.

    It is `hpctl.progress` with all that it needs: the standard library of Python 3.8 or later.

    \b
      hpctl checkpoint progress > hpctl_progress.py      beside the program
        import hpctl_progress as progress
        progress.step(n, loss=loss)
    """
    output.print_exact_text(build_single_file_progress_module(), nl=False)


def build_single_file_progress_module() -> str:
    """Return the source of `hpctl.progress`, with the rate limit that it imports in its place."""
    text, bucket = inspect.getsource(reporter), inspect.getsource(token_bucket.TokenBucket)
    before, found, after = text.partition(_IMPORT)
    assert found, "hpctl.progress imports something else now"
    imports = before.replace("import os\n", "import math\nimport os\n", 1)
    return f"{imports}\n{bucket}\n{after.lstrip()}"

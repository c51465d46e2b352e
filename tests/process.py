"""Commands as the tests run them: to their end, bounded in time, with their output as text."""

import subprocess


def run_text(args, timeout=60, check=False, **more):
    """`subprocess.run` with the output captured as text."""
    return subprocess.run(
        args, timeout=timeout, check=check, capture_output=True, text=True, **more
    )

"""What Python 3.10 lacks, under the names and with the behaviour that 3.11 gives it."""

from __future__ import annotations

SAFE_PATH = (
    "-c",
    "import sys; sys.path = [p for p in sys.path if p]; import runpy;"
    " runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)",
)
"""`python *SAFE_PATH MODULE ARGUMENTS...` is `python -P -m MODULE ARGUMENTS...` of 3.11: nothing is
imported from the current directory, where a user's `json.py` may lie."""

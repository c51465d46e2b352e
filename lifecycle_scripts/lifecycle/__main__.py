"""`python3 -IB .../lifecycle run OnCreate`: the directory itself is started."""

import sys
from pathlib import Path

# Python puts the directory that it starts first; the package is the directory itself.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from lifecycle.command import main  # noqa: E402 -- not to be found before

sys.exit(main(sys.argv[1:]))

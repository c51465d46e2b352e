"""`python -m docgen [--check]`."""

import sys

from docgen.generate import main

sys.exit(main(sys.argv[1:]))

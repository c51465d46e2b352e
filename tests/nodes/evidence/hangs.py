"""A process that never answers, in the place of the one that gathers evidence."""

import time

time.sleep(600)

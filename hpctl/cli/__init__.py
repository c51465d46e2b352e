"""The `hpctl` command line."""

import gc

# Imports make no garbage, and looking for some among them is a tenth of a command's start.
gc.set_threshold(10_000)

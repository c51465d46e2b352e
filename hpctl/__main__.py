"""`python -m hpctl` is the same program as `hpctl`."""

from hpctl.cli.main import main

main()

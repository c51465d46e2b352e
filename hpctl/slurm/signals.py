"""The signals that Slurm's commands name."""

SIGNALS = ("USR1", "USR2", "TERM", "INT", "HUP", "QUIT", "ALRM", "URG", "CONT")
"""Those that sbatch's --signal has names for and that a program can catch and go on from."""

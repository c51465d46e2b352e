"""Batch scripts as people write them, submitted unchanged with `hpctl sbatch`.

`scripts/` holds one script for each shape that is found in public training repositories, written
for this test. The programs that they start (torchrun, accelerate, python, module, conda, ...) are
stubs before PATH (`program.py`), so that what is tested is the script, Slurm and hpctl. Each script
loses a node and then a rank (`stage.py`).

`python -m tests.jobs.strangers DIRECTORY` plays scripts from elsewhere in the same way, and prints
a row for each: `play.yaml` in that directory says what their owners give them.
"""

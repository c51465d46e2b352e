"""The demo's job: real training, small enough for two cores and exact to the last bit.

A character-level language model, data-parallel over Slurm tasks, with atomic sharded checkpoints.
Only numpy beyond hpctl's own: four ranks start at once on two cores. `loop` trains and saves,
`group` joins the ranks, `model` computes; every reduction has a fixed order.
"""

import os

# Here, because it must happen before anyone imports numpy: BLAS reads these once, and would start
# a pool of threads in every rank. The ranks are the parallelism.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

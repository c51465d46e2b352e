#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1
if [[ -z ${SCRATCH_HOME} ]]; then
    printf "SCRATCH_HOME must be set\n"
    exit 1
fi
srun -l --output=%x_%j.log --export "TRAINING_HOME=${SCRATCH_HOME}" bash ${1}
set +x

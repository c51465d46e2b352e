set -e
LOGS="$PWD/slurm_logs"
TRAIN="cd $PWD; python train.py --load $PWD/checkpoints"
mkdir -p "$LOGS"
sbatch --parsable <<EOF
#!/bin/bash
#SBATCH --job-name=submitted --nodes=2 --ntasks-per-node=1 --exclusive
set -o pipefail
srun -l --mpi=pmix --container-image=image.sqsh bash -x -c "${TRAIN}" 2>&1 | tee ${LOGS}/\${SLURM_JOB_ID}.log
EOF

#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --export=NONE

srun /bin/bash ./train.sh

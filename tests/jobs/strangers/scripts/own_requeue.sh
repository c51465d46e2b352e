#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2
#SBATCH --array=0-0%1
#SBATCH --signal=B:USR1@60
#SBATCH --open-mode=append
#SBATCH --time=4320
#SBATCH --output=slurm-%A_%a.out

on_signal () {
    if [ "$1" = "TERM" ]; then
        echo "passing over SIGTERM"
    else
        echo "requeue at $1"
        scontrol requeue $SLURM_JOB_ID
    fi
}
trap 'on_signal USR1' USR1
trap 'on_signal TERM' TERM

srun --label bash -c 'python train.py --rank $SLURM_PROCID' &
wait $!

#!/bin/bash
#SBATCH --nodes=1 --ntasks-per-node=1 --gres=gpu:4 --cpus-per-task=160 --time=01:59:00
source ./environment.sh
export SCRIPT_ARGS=" \
    --mixed_precision fp16 \
    --output_dir out \
    "
accelerate launch --num_processes 4 train.py $SCRIPT_ARGS

#!/bin/bash
#SBATCH -J modules
#SBATCH -D .
#SBATCH -o O-%x.%j
#SBATCH -e E-%x.%j
#SBATCH -N 2 --ntasks-per-node=2 -c 8 --gres=gpu:2
#SBATCH --qos=high -p hopper-prod

set -x -e
source /etc/profile.d/modules.sh
module load cuda/12.1
source "$HOME/none/bin/activate"
conda activate train
export PYTHONPATH=$PWD/site-packages
export PYTHONHOME=$PWD/none
nvidia-smi topo -m

if [ -z "${INTERACTIVE}" ]; then
    srun --wait=0 --kill-on-bad-exit=1 python3 train.py --config config.yaml
else
    srun python3 train.py > out.txt 2>&1 &
fi

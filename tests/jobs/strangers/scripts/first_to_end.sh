#!/bin/bash
#SBATCH --nodes=2
#SBATCH --exclusive
#SBATCH --dependency=singleton
set -euo pipefail
steps=()
mkdir -p "$PWD/ranks"
cat > "$PWD/ranks/worker.sh" <<'__END__'
#!/bin/bash
exec python serve.py "$1"
__END__

mapfile -t nodes < <(scontrol show hostnames "$SLURM_NODELIST")
for i in "${!nodes[@]}"; do
    srun --nodes=1 --ntasks=1 --nodelist="${nodes[$i]}" --container-image=image.sqsh \
        --output="$PWD/ranks/$SLURM_JOB_ID-$i.out" bash "$PWD/ranks/worker.sh" "$i" &
    steps+=($!)
done

cleanup() {
    if (( ${#steps[@]} > 0 )); then
        kill "${steps[@]}" 2>/dev/null || true
    fi
}
trap cleanup EXIT
trap 'exit 143' TERM
code=0
wait -n || code=$?
exit "$code"

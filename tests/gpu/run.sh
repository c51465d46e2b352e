#!/bin/bash
# Run the proof on a machine with a GPU: root, Ubuntu 24.04, Python 3.12 with torch, no network.
#
#   OUT=folder [BUDGET=480] [ONLY=machine,crashes] tests/gpu/run.sh
#
# `make gpu-carry` has filled build/gpu-carry before. With DRY=1 stand-ins take the place of the GPU,
# the checkout's .venv that of the carried wheels, and this machine's Slurm that of the carried one.
set -euo pipefail
cd "$(dirname "$0")/../.."
carry=build/gpu-carry
place=/opt/hpctl-proof
out=${OUT:-build/gpu-proof}
budget=${BUDGET:-480}

die() {
    printf 'gpu-proof: %s\n' "$@" >&2
    exit 2
}

options=(--out "$out")
[[ -z ${ONLY:-} ]] || options+=(--only "$ONLY")
if [[ -n ${DRY:-} ]]; then
    [[ -x .venv/bin/python ]] || die "no .venv: run \`make setup\`"
    exec .venv/bin/python -m tests.gpu "${options[@]}" --budget "$budget" --dry
fi

[[ -c /dev/nvidiactl ]] || die "no NVIDIA GPU here (no /dev/nvidiactl); DRY=1 uses stand-ins"
[[ -s $carry/slurm.tar.gz && -n $(find $carry/wheels -name 'hpctl-*.whl') ]] ||
    die "$carry is not filled: run \`make gpu-carry\` where there is a network, and carry it here"
((EUID == 0)) || die "root is needed to unpack Slurm and to read the kernel's log"

# The carried files never replace the machine's: its own libraries are at least as new.
unpack_slurm() {
    tar -xz --keep-directory-symlink --skip-old-files -f $carry/slurm.tar.gz -C /
    echo $place/lib >/etc/ld.so.conf.d/zz-hpctl-proof.conf
    ldconfig
    getent hosts "$(hostname)" >/dev/null || echo "127.0.0.1 $(hostname)" >>/etc/hosts
}

# An environment of hpctl's own, whose packages come before the machine's torch and JAX.
make_environment() {
    local site
    python3 -m venv --without-pip $place/venv
    site=$($place/venv/bin/python -c 'import site; print(site.getsitepackages()[0])')
    python3 -c 'import site; print("\n".join(site.getsitepackages()))' >"$site/zz-machine.pth"
    python3 -m pip --python $place/venv/bin/python install --quiet --no-index --no-deps \
        --no-compile --no-cache-dir --ignore-installed $carry/wheels/*.whl
}

key=$(sha256sum $carry/key.json | cut -d' ' -f1)
if [[ $(cat $place/key 2>/dev/null) != "$key" ]]; then
    rm -rf $place/venv
    unpack_slurm
    make_environment
    echo "$key" >$place/key
fi
export PATH=$place/venv/bin:$PATH:/usr/sbin:/sbin
# The parts import the tree, and the nodes of a sandbox run the console scripts of the wheel.
python -m tests.gpu.carry --verify --folder $carry ||
    die "$carry is of another state of hpctl: run \`make gpu-carry\` again, and carry it here"
printf 'gpu-proof: set up in %d s: %s\n' $SECONDS "$(slurmctld -V)"
exec python -m tests.gpu "${options[@]}" --budget $((budget - SECONDS))

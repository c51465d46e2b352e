#!/bin/sh
# Build hpctl's SPANK plugin on this node and name it in Slurm's plugstack.conf, so that
# `sbatch --resilient` and `srun --resilient` are there. May run again at any time.
#
# For on_create.sh, or by hand, as root: on every node that users submit from or run jobs on (the
# plugin must lie at the same path everywhere), and on the controller, whose plugstack.conf counts
# in a configless cluster. A node without a compiler, headers or plugstack.conf must not stay out of
# the cluster for that: call it as
#
#     sh install_spank.sh || echo "install_spank: no --resilient on this node"
#
# HPCTL_PYTHON    the interpreter that hpctl is installed in (/opt/hpctl/bin/python)
# HPCTL_SPANK     where the plugin goes (/opt/hpctl/lib/hpctl_spank.so)
# HPCTL_PLUGINS   hpctl's slurm_plugins directory (beside this one, or in it)
# SLURM_ETC       where slurm.conf is (/opt/slurm/etc, /etc/slurm)
# SLURM_INCLUDE   where slurm/spank.h is (/opt/slurm/include, /usr/include)
set -eu

python=${HPCTL_PYTHON:-/opt/hpctl/bin/python}
plugin=${HPCTL_SPANK:-/opt/hpctl/lib/hpctl_spank.so}
here=$(cd "$(dirname "$0")" && pwd)

say() { echo "install_spank: $*"; }

for sources in "${HPCTL_PLUGINS:-}" "$here/../slurm_plugins" "$here/slurm_plugins"; do
    [ ! -e "$sources/build_spank.sh" ] || break
done
if [ ! -e "$sources/build_spank.sh" ]; then
    say "hpctl's slurm_plugins directory is not beside $here: set HPCTL_PLUGINS" >&2
    exit 1
fi
# By its shell: what comes from S3 has no executable bit.
say "$(sh "$sources/build_spank.sh" "$plugin" ${SLURM_INCLUDE:+"$SLURM_INCLUDE"})"

for etc in "${SLURM_ETC:-}" /opt/slurm/etc /etc/slurm; do
    [ ! -e "$etc/slurm.conf" ] || break
done
if [ ! -e "$etc/slurm.conf" ]; then
    say "no slurm.conf here (configless): the controller's plugstack.conf must name $plugin"
    exit 0
fi

# `optional`: where the plugin is missing or of another Slurm release, Slurm continues without it.
line="optional $plugin python=$python"
conf=$etc/plugstack.conf
if grep -qsxF "$line" "$conf"; then
    say "$conf names it already"
    exit 0
fi
# Whatever else the file has, HyperPod's own plugins too, stays as it is; an older line of ours goes.
part=$conf.hpctl.$$
trap 'rm -f "$part"' EXIT
if [ -e "$conf" ]; then
    cp -p "$conf" "$part"
    grep -v '/hpctl_spank\.so\([[:space:]]\|$\)' "$conf" >"$part" || :
else
    : >"$part"
    chmod 644 "$part"
fi
[ ! -s "$part" ] || [ -z "$(tail -c 1 "$part")" ] || echo >>"$part"
echo "$line" >>"$part"
mv -f "$part" "$conf"
say "$conf names it now; in a configless cluster: scontrol reconfigure"

#!/bin/sh
# OnCreate: HyperPod runs this as root on every new instance, before Slurm's daemons start, where
# everything on the node is ours. It may be run again at any time. A non-zero exit keeps the
# instance out of the cluster; the last line says which step of which node failed, and why.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
exec sh "$here/start.sh" OnCreate "$@"

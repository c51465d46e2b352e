#!/bin/sh
# OnInitComplete: HyperPod runs this as root when the AMI has set up Slurm, containers and storage.
# What the AMI did is left alone; hpctl and the site's own steps come on top. It may be run again
# at any time. The last line says which step of which node failed, and why.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
exec sh "$here/start.sh" OnInitComplete "$@"

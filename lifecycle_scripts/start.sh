#!/bin/sh
# What both entry scripts do: check the bundle, find a Python, run the steps.
#
#     start.sh OnCreate|OnInitComplete [--root PREFIX] [--ip ADDRESS]
#
# HPCTL_LIFECYCLE_ROOT     everything is done below this directory and not on the machine, and what
#                          needs systemd or mounts is not done at all (sandboxes, tests)
# HPCTL_LIFECYCLE_IP       this node's address in resource_config.json, where it cannot be found
# HPCTL_LIFECYCLE_PYTHON   an interpreter to try first
set -eu
mode=$1
shift
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

fail() {
    echo "hpctl lifecycle: FAILED step=$1 node=$(uname -n) after 1 try: $2"
    # The instance goes when this ends, and with it what is not in CloudWatch yet.
    [ -n "${HPCTL_LIFECYCLE_ROOT:-}" ] || sleep "${HPCTL_LIFECYCLE_FAILURE_WAIT_S:-60}"
    exit 1
}

config=${SAGEMAKER_RESOURCE_CONFIG_PATH:-/opt/ml/config/resource_config.json}
if [ ! -r "$config" ]; then
    if [ -n "${SAGEMAKER_RESOURCE_CONFIG_PATH:-}" ]; then
        fail node "$config cannot be read, which SAGEMAKER_RESOURCE_CONFIG_PATH names"
    fi
    echo "hpctl lifecycle: OK node=$(uname -n): no $config: nothing to do on a plain instance"
    exit 0
fi

# `hpctl cluster lifecycle push` sends it last: without it the upload has not ended.
if [ -e "$here/MANIFEST" ]; then
    wrong=$(cd "$here" && LC_ALL=C sha256sum --check --quiet --strict MANIFEST 2>/dev/null) || :
    if [ -n "$wrong" ]; then
        fail verify "$(echo "$wrong" | head -n 1 | cut -d : -f 1) is not the file that MANIFEST names"
    fi
    (cd "$here" && sha256sum --check --status --strict MANIFEST) || fail verify "MANIFEST is broken"
elif [ -z "${HPCTL_LIFECYCLE_ROOT:-}" ]; then
    fail verify "no MANIFEST beside these scripts: send them with 'hpctl cluster lifecycle push'"
fi

for python in "${HPCTL_LIFECYCLE_PYTHON:-}" /usr/bin/python3 python3 python3.13 python3.12 \
    python3.11 python3.10 python3.9 python3.8 /opt/hpctl/bin/python3; do
    [ -n "$python" ] || continue
    "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null || continue
    # shellcheck disable=SC2093 # it is the end where it works
    exec "$python" -IBu "$here/lifecycle" run "$mode" "$@"
done
fail start "no Python 3.8 or later on this machine"

#!/bin/sh
# Build the SPANK plugin against the Slurm that is installed: a plugin is loaded by the release
# whose headers it was built with, and refused by every other.
#
#     build_spank.sh OUTPUT.so [DIRECTORY]   DIRECTORY: where slurm/spank.h is, where not in
#                                            /opt/slurm/include, /usr/include, /usr/local/include
#     build_spank.sh --headers [DIRECTORY]   print where the headers are; exit code 1 without any
#
# CC and CFLAGS are honoured.
set -eu

output=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
found=
for include in ${1:-/opt/slurm/include /usr/include /usr/local/include}; do
    if [ -z "$found" ] && [ -e "$include/slurm/spank.h" ]; then found=$include; fi
done
if [ -z "$found" ]; then
    echo "build_spank: no slurm/spank.h in ${1:-the usual places}: install Slurm's headers" \
        "(Debian: libslurm-dev), or name their directory" >&2
    exit 1
fi
if [ "$output" = --headers ]; then
    echo "$found"
    exit 0
fi
mkdir -p "$(dirname "$output")"
# Beside it and renamed: a process that has the old one loaded keeps it whole.
# shellcheck disable=SC2086 # CFLAGS are several
"${CC:-cc}" -std=gnu11 -Wall -Wextra -Werror ${CFLAGS:--O2} -fPIC -shared "-I$found" \
    -o "$output.new.$$" "$here/hpctl_spank.c"
mv -f "$output.new.$$" "$output"
echo "$output: built with the headers in $found"

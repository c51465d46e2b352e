#!/bin/bash
# Sequential writes and reads by fio below a directory that other users may write to:
# disk.sh DIRECTORY GIB SECONDS DEPTH
#
# The file lies in a new directory, which only this user can write to. Under a known name another
# user's link would be written through, and another user's file would fail the test. A disk that
# users have filled is not broken: without room the test is skipped.
set -u
directory=$1 gib=$2 seconds=$3 depth=$4
skip() {
    echo "HEALTH_CHECK_RESULT:$(hostname -s):Skipped:none:$directory has no room for $gib GiB"
    exit 0
}
is_full() {
    case $1 in
        *"No space left"* | *"quota exceeded"* | *'"error" : 28,'* | *'"error" : 122,'*) return 0 ;;
    esac
    return 1
}

# What a test of this node that was killed has left.
name=.hpctl-acceptance.$(hostname -s)
find "$directory" -maxdepth 1 -type d -name "$name.????????" -user "$(id -u)" \
    -exec rm -rf -- {} + 2>/dev/null
free=$(df --output=avail --block-size=1G "$directory" | tail -n 1)
[ -n "$free" ] || exit 1 # df has said why: a file system that does not answer is not a full one
[ "$free" -gt "$gib" ] || skip
if ! own=$(mktemp -d "$directory/$name.XXXXXXXX" 2>&1); then
    is_full "$own" && skip
    echo "$own" >&2
    exit 1
fi
trap 'rm -rf -- "$own"' EXIT
said=$(fio --name=hpctl "--directory=$own" --filename=data --unlink=1 --rw=rw --bs=1M \
    "--size=${gib}G" --direct=1 --ioengine=libaio "--iodepth=$depth" --time_based \
    "--runtime=$seconds" --output-format=json 2>&1)
code=$?
[ "$code" -ne 0 ] && is_full "$said" && skip
printf '%s\n' "$said"
exit "$code"

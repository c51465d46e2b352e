#!/bin/sh
# Finish a checkpoint of any format so that hpctl can prove it whole: one file, no hpctl needed.
#
#     sh hpctl_checkpoint.sh DIR STEP [RANKS]
#
# DIR holds all files of the checkpoint, and its name has `.tmp` in it and what tells this start of
# the job from every other: step-120.tmp-$SLURM_JOB_ID-$HPCTL_RESTART_COUNT. They are synced and
# listed in DIR/manifest.json with size and SHA-256; last, DIR is renamed to what stands before
# `.tmp`. Killed at any point, it leaves DIR, which hpctl passes over. RANKS is how many ranks
# saved (1). Where they ran on other nodes, each ends its own save with `sync`.
#
# Get it with `hpctl checkpoint helper --shell`. It takes any POSIX shell, find, sha256sum, sync and
# an mv with -T (GNU's, BusyBox's); the format is in docs/checkpoints.md.
set -eu
LC_ALL=C
export LC_ALL

fail() {
    echo "hpctl_checkpoint.sh: $*" >&2
    exit 1
}

number() {
    case ${1:-x} in *[!0-9]*) fail "$2 is no number: ${1:-} (DIR STEP [RANKS])" ;; esac
    # JSON has no leading zeros.
    printf '%s' "$1" | sed 's/^0*\(.\)/\1/'
}

step=$(number "${2:-}" STEP)
ranks=$(number "${3:-1}" RANKS)
[ "$ranks" != 0 ] || fail "RANKS is 0"
cd -- "$1"
saved=$(pwd -P)
final=${saved%.tmp*}
case ${saved##*/} in
?*.tmp*) ;;
*) fail "the name of $saved has no .tmp in it" ;;
esac

rm -f manifest.json .manifest.json.*
odd=$(find . -name '*[!A-Za-z0-9._=+,@%-]*' -o ! -type f ! -type d)
[ -z "$odd" ] || fail "neither a file nor a directory, or a name with other characters than" \
    "A-Z a-z 0-9 . _ = + , @ % -: $odd"
files=$(find . -type f)
[ -n "$files" ] || fail "there are no files in $saved"
# Directories too: a name that is lost is a file that is lost. An old sync takes no names.
find . -exec sync {} + 2>/dev/null || sync

# The manifest's checksum is that of exactly these bytes: keys sorted, no spaces.
{
    printf '{"created_at":"%s","files":[' "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
    comma=
    for file in $files; do
        digest=$(sha256sum <"$file")
        size=$(($(wc -c <"$file")))
        printf '%s{"path":"%s","sha256":"%s","size":%d}' "$comma" "${file#./}" "${digest%% *}" "$size"
        comma=,
    done
    printf '],"format":"hpctl-checkpoint","meta":{},"step":%s,"version":1,"world_size":%s}' \
        "$step" "$ranks"
} >.manifest.json.body
sum=$(sha256sum <.manifest.json.body)
{
    printf '{"checksum":"%s",' "${sum%% *}"
    tail -c +2 .manifest.json.body
} >.manifest.json.whole
rm .manifest.json.body
sync .manifest.json.whole 2>/dev/null || sync
mv .manifest.json.whole manifest.json
sync . 2>/dev/null || sync

cd ..
if [ -e "$final/manifest.json" ] && [ -n "$(ls .hpctl-marks 2>/dev/null)" ]; then
    # In a directory with marks of `hpctl resume`: one from before the last start or mark gives way.
    newer=$(find .hpctl-marks .hpctl-starts -type f -newer "$final/manifest.json" 2>/dev/null) || :
    if [ -n "$newer" ]; then mv -T "$final" "$final.passed-over-${saved##*.tmp}"; fi
fi
if [ -e "$final/manifest.json" ]; then
    # rename(2) would refuse it, too: of two attempts the first wins, whole.
    echo "hpctl_checkpoint.sh: $final is there already: it is kept, and so is $saved" >&2
    exit 0
fi
mv -T "$saved" "$final"
sync . 2>/dev/null || sync

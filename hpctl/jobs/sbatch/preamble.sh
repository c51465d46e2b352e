# What hpctl/jobs/sbatch/preamble.py puts into a script: sections between lines of `#@ NAME`, and @WORDS@ to
# fill in. `exports` stands for the lines that export what was asked for.
#@ begin
# --- begin: put in by hpctl sbatch, see `hpctl sbatch --help` ---
hpctl_preamble() {
    # Not those of another job, in which this one was submitted.
    unset HPCTL_RESUME_FROM HPCTL_SKIP HPCTL_CHECKPOINT_DIR HPCTL_CHECKPOINT_FILES HPCTL_TIERS HPCTL_POLICY \
        HPCTL_SPARES HPCTL_SAVE_SIGNAL HPCTL_SUSPECTS HPCTL_FAST_DIR HPCTL_FAST_SPEC HPCTL_FAST_OPTIONS
    # Nor where that job's ranks dump: they would take these for dumps of their own.
    if [ -n "${HPCTL_FLIGHT_PREFIX:-}" ]; then
        unset HPCTL_FLIGHT_PREFIX TORCH_FR_DUMP_TEMP_FILE TORCH_NCCL_DEBUG_INFO_TEMP_FILE
    fi
    export HPCTL_PYTHON=@PYTHON@
    export HPCTL_RESTART_COUNT="${SLURM_RESTART_COUNT:-0}"
    # A rank that ends badly ends its step: srun would wait for those that hang for it, and the job
    # with them, until the time limit.
    export SLURM_KILL_BAD_EXIT="${SLURM_KILL_BAD_EXIT:-1}"
    # A collective that times out leaves its history of each rank: torch's flight recorder, by the
    # names of torch 2.11 and of earlier releases.
    if [ -z "${TORCH_FR_BUFFER_SIZE+set}${TORCH_NCCL_TRACE_BUFFER_SIZE+set}" ]; then
        export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000
    fi
    export TORCH_NCCL_DUMP_ON_TIMEOUT="${TORCH_NCCL_DUMP_ON_TIMEOUT:-1}"
    # Where sbatch --export keeps the environment from the steps, the program still needs these.
    hpctl_names=HPCTL_RESUME_FROM,HPCTL_SKIP,HPCTL_CHECKPOINT_DIR,HPCTL_CHECKPOINT_FILES,HPCTL_RESTART_COUNT
    hpctl_names=$hpctl_names,HPCTL_PYTHON,HPCTL_TIERS,HPCTL_POLICY,HPCTL_SPARES,HPCTL_SAVE_SIGNAL
    hpctl_names=$hpctl_names,HPCTL_SUSPECTS,HPCTL_FAST_DIR,HPCTL_FAST_SPEC,HPCTL_FAST_OPTIONS
    hpctl_names=$hpctl_names,TORCH_FR_BUFFER_SIZE
    hpctl_names=$hpctl_names,TORCH_NCCL_TRACE_BUFFER_SIZE,TORCH_NCCL_DUMP_ON_TIMEOUT
    hpctl_names=$hpctl_names,TORCH_FR_DUMP_TEMP_FILE,TORCH_NCCL_DEBUG_INFO_TEMP_FILE,HPCTL_FLIGHT_PREFIX
    case ",${SLURM_EXPORT_ENV:-ALL}," in
    *,[Aa][Ll][Ll],*) ;;
    ,[Nn][Oo][Nn][Ee],|,[Nn][Ii][Ll],) export SLURM_EXPORT_ENV="$hpctl_names" ;;
    *) export SLURM_EXPORT_ENV="$SLURM_EXPORT_ENV,$hpctl_names" ;;
    esac
    : exports
#@ preflight
    hpctl_line=$(@ENVIRONMENT@"$HPCTL_PYTHON" @SAFE_PATH@ hpctl.nodes.acceptance.preflight @LEVEL@ </dev/null) || :
    case $hpctl_line in
    "without "*) export HPCTL_SUSPECTS="${hpctl_line#without }" ;;
    go) ;;
    *) echo "hpctl: preflight did not answer ($HPCTL_PYTHON); going ahead" >&2 ;;
    esac
#@ fast
    if [ -d @BASE@ ]; then mkdir -p "$HPCTL_CHECKPOINT_DIR" || :; fi
    hpctl_line=$(@ENVIRONMENT@"$HPCTL_PYTHON" @SAFE_PATH@ hpctl.checkpoints.fast.helpers start </dev/null) || :
    case $hpctl_line in
    /*) export HPCTL_FAST_SPEC="$hpctl_line" ;;
    stop) return @STOP@ ;;
    off) unset HPCTL_FAST_DIR ;;
    *)
        echo "hpctl: fast saves are off: hpctl itself did not answer ($HPCTL_PYTHON); the program" \
            "saves to $HPCTL_CHECKPOINT_DIR (HPCTL_FAST_DIR is not set)" >&2
        unset HPCTL_FAST_DIR ;;
    esac
#@ reports
    if [ "$HPCTL_RESTART_COUNT" -gt 0 ]; then
        @ENVIRONMENT@"$HPCTL_PYTHON" @SAFE_PATH@ @STARTED@ </dev/null || :
    fi
#@ make
    for hpctl_pause in 2 5 10 0; do
        if [ -d @BASE@ ] && mkdir -p "$HPCTL_CHECKPOINT_DIR"; then return 0; fi
        sleep "$hpctl_pause"
    done
    echo "hpctl: @BASE_TEXT@ is not there on this node" >&2
    return @STOP@
#@ resume
    if [ "${HPCTL_RESUME:-}" = scratch ]; then
        echo "hpctl: HPCTL_RESUME=scratch: starting from the beginning" >&2
        if [ -d @BASE@ ]; then mkdir -p "$HPCTL_CHECKPOINT_DIR" || :; fi
        return 0
    fi
    hpctl_limit=
    if command -v timeout >/dev/null 2>&1; then hpctl_limit="timeout @LIMIT@"; fi
    for hpctl_pause in 2 5 10 0; do
        hpctl_line="unreadable @BASE_TEXT@ is not there on this node"
        if [ -d @BASE@ ] && mkdir -p "$HPCTL_CHECKPOINT_DIR"; then
            hpctl_line=$(HPCTL_EXPORT_SKIP=1 @ENVIRONMENT@$hpctl_limit "$HPCTL_PYTHON" @SAFE_PATH@ hpctl \
                checkpoint last --export@TELL@ "$HPCTL_CHECKPOINT_DIR"@SEARCH@ </dev/null) || :
        fi
        case $hpctl_line in unreadable*) sleep "$hpctl_pause" ;; *) break ;; esac
    done
    # After `hpctl resume --skip-batches`: "skip 20:22 found /...".
    case $hpctl_line in
    "skip "*)
        hpctl_line="${hpctl_line#skip }"
        export HPCTL_SKIP="${hpctl_line%% *}"
        hpctl_line="${hpctl_line#* }" ;;
    esac
    case $hpctl_line in
    "found /"*|"found s3://"*)
        export HPCTL_RESUME_FROM="${hpctl_line#found }"
        echo "hpctl: resuming from $HPCTL_RESUME_FROM${HPCTL_SKIP:+, HPCTL_SKIP=$HPCTL_SKIP}" >&2
        return 0 ;;
    none)
        echo "hpctl: no checkpoint in $HPCTL_CHECKPOINT_DIR: starting from the beginning" >&2
        # A grandchild of this shell, which the script does not wait for with `wait`.
        (HPCTL_HELPER=1 @ENVIRONMENT@"$HPCTL_PYTHON" @SAFE_PATH@ hpctl.checkpoints.first_save "$$" \
            </dev/null >/dev/null &)
        return 0 ;;
    incomplete*|unreadable*)
        echo "hpctl: $hpctl_line" >&2
        echo "hpctl: not starting from scratch over what is in $HPCTL_CHECKPOINT_DIR. Repair it," \
            "or give an empty --checkpoint-dir (or HPCTL_RESUME=scratch, for every start)" >&2
        return @STOP@ ;;
    esac
    if [ -n "${HPCTL_TIERS:-}$(ls "$HPCTL_CHECKPOINT_DIR")" ] ||
        { [ -n "${HPCTL_FAST_OPTIONS:-}" ] && [ "$HPCTL_RESTART_COUNT" -gt 0 ]; }; then
        echo "hpctl: hpctl itself did not answer ($HPCTL_PYTHON), and only it can tell which" \
            "checkpoint of $HPCTL_CHECKPOINT_DIR and its tiers is whole. Repair it," \
            "or give an empty --checkpoint-dir (or HPCTL_RESUME=scratch, for every start)" >&2
        return @UNSTARTED@
    fi
    echo "hpctl: hpctl itself did not answer ($HPCTL_PYTHON), and $HPCTL_CHECKPOINT_DIR is empty:" \
        "starting from the beginning" >&2
#@ end
}
hpctl_preamble || exit $?
unset -f hpctl_preamble
unset hpctl_limit hpctl_pause hpctl_line hpctl_names
# SIGUSR1 asks for a checkpoint. It reaches this shell as well, which it must not end; the
# programs that the shell starts still get its default action.
trap : @SIGNALS@
#@ ended
# Where its ranks dump their flight recorders: one file a rank and run, of the last two runs.
if [ -z "${HPCTL_CHECKPOINT_DIR:-}" ]; then
    hpctl_flight="${XDG_STATE_HOME:-${HOME:-/tmp}/.local/state}/hpctl"
elif [ -d "$HPCTL_CHECKPOINT_DIR" ]; then
    hpctl_flight="$HPCTL_CHECKPOINT_DIR/.hpctl"
else
    hpctl_flight=
fi
if [ -z "${TORCH_FR_DUMP_TEMP_FILE+set}${TORCH_NCCL_DEBUG_INFO_TEMP_FILE+set}" ] &&
    [ -n "$hpctl_flight" ] && mkdir -p "$hpctl_flight" 2>/dev/null; then
    hpctl_flight="$hpctl_flight/script-${SLURM_JOB_ID:-0}"
    if [ "$HPCTL_RESTART_COUNT" -ge 2 ]; then
        rm -f "$hpctl_flight.$((HPCTL_RESTART_COUNT - 2)).flight-"* || :
    fi
    rm -f "$hpctl_flight.$HPCTL_RESTART_COUNT.flight-"* || :
    export HPCTL_FLIGHT_PREFIX="$hpctl_flight.$HPCTL_RESTART_COUNT.flight-"
    export TORCH_FR_DUMP_TEMP_FILE="$HPCTL_FLIGHT_PREFIX"
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPCTL_FLIGHT_PREFIX"
fi
unset hpctl_flight
HPCTL_RUN_START=$(date +%s) || :
export HPCTL_RUN_START
# Where this run's output begins in its log, and what reads there why the run ended.
HPCTL_LOG_START=$(stat -Lc %d:%i:%s "/proc/$$/fd/1" "/proc/$$/fd/2" 2>/dev/null) || :
export HPCTL_LOG_START
trap @READ_END@ EXIT
#@ last
# --- end: put in by hpctl sbatch ---

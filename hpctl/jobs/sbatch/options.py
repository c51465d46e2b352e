"""The options of `hpctl sbatch`, hpctl's own and sbatch's, on the command line and in a script.

hpctl passes every option of sbatch through untouched; it must only know which of them take the next
word, so that it does not mistake a value for the script. The table is src/common/slurm_opt.c's
(22.05 to 26.11). A long option that is not in it is taken for a flag unless it carries `=`.

hpctl's own options are the same on the command line and in `#HPCTL` lines. Their values are checked
here, once; every error names its place: the option, and for a directive the file and the line.

sbatch reads a script's `#SBATCH` lines up to the first line that is neither blank nor a comment;
`#HPCTL` lines are read from the same block. What is put in goes right after it.
"""

import difflib
import os
import re
import shlex
import signal
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from hpctl.checkpoints.patterns import parse_checkpoint_file_patterns
from hpctl.slurm.signals import SIGNALS
from hpctl.toolkit.bounds import parse_duration
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.fast_saves import FastCheckpointSaveOptions


class HpctlOptionDefinition(Struct, frozen=True):
    """One option. `value` is its value's name, "" for a flag, and `example` one to write.

    `directive`: `#HPCTL` knows it.
    """

    value: str = ""
    example: str = ""
    directive: bool = True


HPCTL_OPTIONS: Mapping[str, HpctlOptionDefinition] = {
    "checkpoint-dir": HpctlOptionDefinition("DIR", "/shared/my-run"),
    "checkpoint-files": HpctlOptionDefinition("PATTERN", "ckpt_{step}.pt"),
    "tier": HpctlOptionDefinition("DIR|local:DIR|s3://BUCKET/PREFIX", "local:/nvme/my-run"),
    "fast-dir": HpctlOptionDefinition("local:DIR|mem:DIR", "local:/nvme/my-run"),
    "fast-flush": HpctlOptionDefinition("TIME", "15m"),
    "fast-replicas": HpctlOptionDefinition("N", "1"),
    "fast-size": HpctlOptionDefinition("SIZE", "64G"),
    "fast-rate": HpctlOptionDefinition("SIZE", "1G"),
    "fast-keep": HpctlOptionDefinition(),
    "policy": HpctlOptionDefinition("FILE|NAME", "policy.yaml"),
    "log-rules": HpctlOptionDefinition("PRESET|FILE", "megatron"),
    "spares": HpctlOptionDefinition("K", "1"),
    "save-signal": HpctlOptionDefinition("SIGNAL[@SECONDS]", "USR1@120"),
    "preflight": HpctlOptionDefinition("LEVEL", "quick"),
    "no-resume": HpctlOptionDefinition(),
    "slurm-bin": HpctlOptionDefinition("DIR", "/opt/slurm/bin", directive=False),
    "dry-run": HpctlOptionDefinition(directive=False),
    "json": HpctlOptionDefinition(directive=False),
}


MOST_SPARES = 1000


LEVELS = ("quick", "full")
"""Of the tests of a node (hpctl/nodes/acceptance/tests.yaml) before the job's first step."""


SAVE_BEFORE_S = 120
"""Seconds before the time limit at which a save is requested by default. slurmctld looks at time
limits once in 30 to 60 s, so the request may come up to a minute earlier (sbatch(1))."""


_LAST_SECOND = 65535  # sbatch holds it in 16 bits


class HpctlOptionValue(Struct, frozen=True):
    """An option's value as it was written, and where."""

    value: str
    place: str


OptionValues = Mapping[str, tuple[HpctlOptionValue, ...]]


class CheckpointSaveSignal(Struct, frozen=True):
    """Which signal asks the program to save, and how many seconds before the time limit."""

    name: str
    seconds: int


class ParsedHpctlOptions(Struct, frozen=True):
    """What the user asked of hpctl. Directories are absolute, placeholders still in them.

    A tier is a directory, `local:` and a directory on each node's own disk, or an s3:// prefix.
    """

    checkpoint_dir: str | None = None
    checkpoint_files: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    policy: HpctlOptionValue | None = None
    log_rules: tuple[HpctlOptionValue, ...] = ()
    spares: int | None = None
    save_signal: CheckpointSaveSignal | None = None
    resume: bool = True
    preflight: str = ""
    fast: FastCheckpointSaveOptions | None = None


def find_closest_option(typed: str, names: Sequence[str], cutoff: float) -> str:
    """Return `--name` of the option that was probably meant, or ""."""
    found = difflib.get_close_matches(typed, names, n=1, cutoff=cutoff)
    return f"--{found[0]}" if found else ""


def make_missing_option_value_error(name: str, place: str) -> HpctlError:
    """Return the error for an option without its value."""
    return HpctlError(f"{place} needs a value", f"Write --{name} {HPCTL_OPTIONS[name].example}.")


def parse_hpctl_directive(rest: str, place: str) -> dict[str, tuple[HpctlOptionValue, ...]]:
    """Return the options of one `#HPCTL` line. Raises HpctlError for anything else in it."""
    found: dict[str, tuple[HpctlOptionValue, ...]] = {}
    try:
        left = shlex.split(rest, comments=True)
    except ValueError as error:
        raise HpctlError(
            f"{place}: #HPCTL{rest.rstrip()}: {error}", "Close the quotation mark."
        ) from None
    if not left:
        raise HpctlError(
            f"{place}: the #HPCTL line is empty",
            f"Write one of the directives {_format_hpctl_directive_names()}, or remove the line.",
        )
    while left:
        word = left.pop(0)
        typed, equals, value = word.partition("=")
        name = typed.removeprefix("--")
        own = HPCTL_OPTIONS.get(name)
        if own is None or not typed.startswith("--") or not own.directive:
            _raise_unknown_hpctl_directive_error(place, typed, name)
        assert own is not None
        at = f"{place}: --{name}"
        taken = _parse_hpctl_option_value(name, equals, value, left, at, f"#HPCTL --{name}")
        if "$" in taken.value:
            raise HpctlError(
                f"{place}: variables are not expanded in directives: {taken.value}",
                f"Write the value, or use {{job_id}} or {{array_task_id}}; or give --{name} on "
                "the command line.",
            )
        found[name] = (*found.get(name, ()), taken)
    return found


def _parse_hpctl_option_value(  # noqa: PLR0913 -- the parts of one word that was typed
    name: str, equals: str, value: str, left: list[str], place: str, example: str
) -> HpctlOptionValue:
    """Return an option of hpctl with its value: after `=`, else the next word. Raises
    HpctlError."""
    option = HPCTL_OPTIONS[name]
    if option.value and not equals:
        value = left.pop(0) if left else ""
    if option.value and not value:
        raise make_missing_option_value_error(name, place)
    if equals and not option.value:
        raise HpctlError(f"{place} takes no value", f"Write {example}.")
    return HpctlOptionValue(value, place)


def _raise_unknown_hpctl_directive_error(place: str, typed: str, name: str) -> None:
    if name in HPCTL_OPTIONS and not HPCTL_OPTIONS[name].directive:
        raise HpctlError(
            f"{place}: --{name} cannot stand in an #HPCTL line",
            f"Give --{name} on the command line.",
        )
    names = [each for each, own in HPCTL_OPTIONS.items() if own.directive]
    meant = find_closest_option(name, names, 0.5)
    raise HpctlError(
        f"{place}: unknown #HPCTL directive {typed!r}",
        f"Did you mean {meant}?" if meant else f"hpctl knows {_format_hpctl_directive_names()}.",
    )


def _format_hpctl_directive_names() -> str:
    return ", ".join(f"--{name}" for name, own in HPCTL_OPTIONS.items() if own.directive)


def merge_hpctl_options(
    typed: OptionValues, directives: OptionValues, cwd: str
) -> ParsedHpctlOptions:
    """Return what is asked for in sum; the command line wins. Raises HpctlError for a bad value."""
    given = {**directives, **typed}

    def get_last_option_value(name: str) -> HpctlOptionValue | None:
        return given[name][-1] if given.get(name) else None

    spares, save, where = (
        get_last_option_value("spares"),
        get_last_option_value("save-signal"),
        get_last_option_value("checkpoint-dir"),
    )
    return ParsedHpctlOptions(
        checkpoint_dir=_parse_checkpoint_directory_option(where, cwd) if where else None,
        checkpoint_files=_parse_checkpoint_files(given.get("checkpoint-files", ()), where),
        tiers=tuple(
            dict.fromkeys(
                _parse_checkpoint_tier_option(each, cwd) for each in given.get("tier", ())
            )
        ),
        policy=get_last_option_value("policy"),
        log_rules=given.get("log-rules", ()),
        spares=_parse_spare_node_count(spares) if spares else None,
        save_signal=_parse_save_signal_option(save) if save else None,
        resume="no-resume" not in given,
        preflight=_parse_node_test_level(level)
        if (level := get_last_option_value("preflight"))
        else "",
        fast=_parse_fast_save_options(given, where),
    )


def _parse_checkpoint_files(
    patterns: Sequence[HpctlOptionValue], directory: HpctlOptionValue | None
) -> tuple[str, ...]:
    for option in patterns:
        if directory is None:
            raise HpctlError(
                f"{option.place} names files in the checkpoint directory, but the job has no "
                "checkpoint directory",
                "Add --checkpoint-dir DIR, on storage that the nodes share.",
            )
        try:
            parse_checkpoint_file_patterns([option.value])
        except HpctlError as error:
            raise HpctlError(f"{option.place}: {error}", error.hint) from None
    return tuple(dict.fromkeys(option.value for option in patterns))


def _parse_checkpoint_directory_option(option: HpctlOptionValue, cwd: str) -> str:
    directory = os.path.abspath(os.path.join(cwd, os.path.expanduser(option.value)))
    if not directory.isprintable():
        raise HpctlError(
            f"{option.place}: the directory's name {directory!r} has unprintable characters",
            "Use a directory whose name has only printable characters.",
        )
    return directory


def _parse_fast_save_options(
    given: OptionValues, shared: HpctlOptionValue | None
) -> FastCheckpointSaveOptions | None:
    options = {name: each[-1] for name, each in given.items() if name.startswith("fast-") and each}
    where = options.pop("fast-dir", None)
    if where is None:
        for other in options.values():
            raise HpctlError(f"{other.place} works only with --fast-dir", "Add --fast-dir.")
        return None
    kind, _, directory = where.value.partition(":")
    if kind not in ("local", "mem") or not os.path.isabs(directory):
        raise HpctlError(
            f"{where.place} must name a directory on each node's own disk; {where.value!r} is none",
            f"Write --fast-dir {HPCTL_OPTIONS['fast-dir'].example}, with an absolute path.",
        )
    if not directory.isprintable() or os.path.normpath(directory) != directory:
        raise HpctlError(
            f"{where.place} needs a path without .. and //, not {directory!r}",
            "Leave out .. and //.",
        )
    if shared is None:
        raise HpctlError(
            f"{where.place}: fast saves are copied to the checkpoint directory, but the job has "
            "no checkpoint directory",
            "Add --checkpoint-dir DIR, on storage that the nodes share.",
        )
    if directory == os.path.normpath(shared.value):
        raise HpctlError(
            f"{where.place} names the checkpoint directory, which the nodes share",
            "Name a directory on each node's own disk.",
        )
    if kind == "mem" and "fast-size" not in options:
        raise HpctlError(
            f"{where.place} is in memory, so its saves use the job's memory: give their size",
            "Add --fast-size SIZE, such as --fast-size 64G.",
        )
    values = {name[5:]: _parse_fast_save_number(name, one) for name, one in options.items()}
    flush_s = values.pop("flush", 900)
    keep = bool(values.pop("keep", 0))
    return FastCheckpointSaveOptions(
        directory, memory=kind == "mem", flush_s=flush_s, keep=keep, **values
    )


def _parse_fast_save_number(name: str, given: HpctlOptionValue) -> int:
    """Return a number of copies, seconds or bytes."""
    if name == "fast-keep":
        return 1
    if name == "fast-replicas":
        if given.value not in ("1", "2"):
            raise HpctlError(
                f"{given.place} must be a number of copies, 1 or 2, not {given.value!r}",
                "Write 1 or 2.",
            )
        return int(given.value)
    if name == "fast-flush":
        seconds = parse_duration(given.value)
        if seconds is None or not 1 <= seconds <= 7 * 86400:
            raise HpctlError(
                f"{given.place} must be a time from 1s to 7d, not {given.value!r}",
                "Write a number and a unit, such as 15m.",
            )
        return int(seconds)
    size = parse_size_bytes(given.value)
    if size is None:
        example = HPCTL_OPTIONS[name].example
        raise HpctlError(
            f"{given.place} must be a size of 1M or more, not {given.value!r}",
            f"Write --{name} {example}.",
        )
    return size


def parse_size_bytes(text: str) -> int | None:
    """Return the bytes of a size as Slurm writes it: 512M, 64G, 1T. None for another text."""
    found = re.fullmatch(r"([1-9][0-9]{0,5})([MGT])B?", text)
    return int(found[1]) << {"M": 20, "G": 30, "T": 40}[found[2]] if found else None


def _parse_checkpoint_tier_option(option: HpctlOptionValue, cwd: str) -> str:
    if "://" not in option.value and not option.value.startswith("s3:"):
        local = "local:" if option.value.startswith("local:") else ""
        where = HpctlOptionValue(option.value.removeprefix("local:"), option.place)
        if not where.value:
            raise make_missing_option_value_error("tier", option.place)
        return local + _parse_checkpoint_directory_option(where, cwd)
    if not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s\x00-\x1f]*)?", option.value):
        raise HpctlError(
            f"{option.place} needs an S3 URL, not {option.value!r}",
            "Write --tier s3://BUCKET/PREFIX.",
        )
    return option.value.rstrip("/")


def _parse_spare_node_count(option: HpctlOptionValue) -> int:
    if not re.fullmatch(r"\d{1,4}", option.value) or int(option.value) > MOST_SPARES:
        raise HpctlError(
            f"{option.place} must be a number of spare nodes, not {option.value!r}",
            f"Write a number from 0 to {MOST_SPARES}: spare nodes in addition to those of --nodes.",
        )
    return int(option.value)


def _parse_node_test_level(option: HpctlOptionValue) -> str:
    if option.value not in LEVELS:
        raise HpctlError(
            f"{option.place} must be the level of a node test, not {option.value!r}",
            f"Write {' or '.join(LEVELS)}.",
        )
    return option.value


def _parse_save_signal_option(option: HpctlOptionValue) -> CheckpointSaveSignal:
    name, at, seconds = option.value.upper().partition("@")
    name = name.removeprefix("SIG")
    if name.isdigit() and int(name) in set(signal.Signals):
        name = signal.Signals(int(name)).name.removeprefix("SIG")
    if name not in SIGNALS:
        meant = difflib.get_close_matches(name, SIGNALS, n=1, cutoff=0.5)
        raise HpctlError(
            f"{option.place} must name a signal that a program can handle, not {option.value!r}",
            f"Did you mean {meant[0]}?" if meant else f"There are {', '.join(SIGNALS)}.",
        )
    if at and not (seconds.isdigit() and 0 < int(seconds) <= _LAST_SECOND):
        raise HpctlError(
            f"{option.place} must have a number of seconds after @, not {option.value!r}",
            f"Write {name}@{SAVE_BEFORE_S}; the number may be at most {_LAST_SECOND}.",
        )
    return CheckpointSaveSignal(name, int(seconds) if at else SAVE_BEFORE_S)


def split_sbatch_option_names(table: str) -> tuple[str, ...]:
    """Return the names of a table."""
    return tuple(table.split())


SHARED_VALUED = split_sbatch_option_names("""
    account acctg-freq bb bbf begin chdir cluster-constraint clusters comment constraint
    container container-id core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task
    deadline delay-boot dependency distribution error exclude export export-file extra
    extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres
    gres-flags hint input job-name licenses mail-type mail-user mcs-label mem mem-bind
    mem-per-cpu mem-per-gpu mincpus network nodefile nodelist nodes ntasks ntasks-per-core
    ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode output partition
    power prefer priority profile qos reservation segment signal sockets-per-node switches
    tasks-per-node thread-spec threads-per-core time time-min tmp tres-bind tres-per-task uid
    wckey
""")
"""What takes a value in sbatch and in srun alike."""


_TAKE_A_VALUE = SHARED_VALUED + split_sbatch_option_names("""
    array autocomplete batch cluster container-type context kill-on-invalid-dep mem-update
    resources runtime wait-all-nodes wrap
""")


# Optional values come only after `=`, so they never take the next word.
_FLAGS = split_sbatch_option_names("""
    consolidate-segments contiguous exclusive external get-user-env help hold ignore-pbs nice
    no-kill no-requeue oom-kill-step overcommit oversubscribe parsable propagate quiet reboot
    requeue resv-ports spread-job spread-segments stepmgr test-only usage use-min-nodes verbose
    version wait
""")


SHARED_SHORT = {
    "A": "account", "B": "extra-node-info", "C": "constraint", "D": "chdir", "F": "nodefile",
    "G": "gpus", "J": "job-name", "L": "licenses", "M": "clusters", "N": "nodes",
    "S": "core-spec", "W": "wait", "c": "cpus-per-task", "d": "dependency", "e": "error",
    "i": "input", "m": "distribution", "n": "ntasks", "o": "output", "p": "partition",
    "q": "qos", "t": "time", "w": "nodelist", "x": "exclude",
}  # fmt: skip
"""The letters that sbatch and srun have in common."""


_SHORT = SHARED_SHORT | {
    "H": "hold", "O": "overcommit", "Q": "quiet", "V": "version", "a": "array", "b": "begin",
    "h": "help", "k": "no-kill", "s": "oversubscribe", "v": "verbose",
}  # fmt: skip


class SbatchCommandLine(Struct):
    """What was typed after `hpctl sbatch`.

    `given` maps sbatch's long option names to their last value ("" for flags), `own` hpctl's
    options to all of theirs. `passed` is what goes to sbatch before the script, word for word,
    but for `--wrap`, whose command is in `given`. `dashes`: a `--` before the script says that no
    option follows.
    """

    passed: list[str] = field(default_factory=list)
    script: str | None = None
    arguments: list[str] = field(default_factory=list)
    given: dict[str, str] = field(default_factory=dict)
    own: dict[str, tuple[HpctlOptionValue, ...]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    het: bool = False
    dashes: bool = False

    @property
    def options_after_script(self) -> list[str]:
        """Return hpctl's options after the script, `--spares` for each: sbatch's rule makes them
        arguments of the script."""
        if self.dashes:
            return []
        words = (word.partition("=")[0] for word in self.arguments)
        return [word for word in words if word.startswith("--") and word[2:] in HPCTL_OPTIONS]


def parse_sbatch_command_line(arguments: Sequence[str]) -> SbatchCommandLine:
    """Read a command line. Raises HpctlError for a misspelt or unfinished option of hpctl's."""
    reader = _SbatchArgumentParser(list(arguments))
    while reader.left and reader.parse_next_option():
        pass
    line = reader.line
    line.script, line.arguments = reader.left[0] if reader.left else None, reader.left[1:]
    return line


class _SbatchArgumentParser:
    """One pass over the arguments, as getopt_long does with a leading `+`: stop at the script."""

    def __init__(self, arguments: list[str]) -> None:
        self.left, self.line = arguments, SbatchCommandLine()

    def parse_next_option(self) -> bool:
        """Take one option (and its value); False at the script."""
        word = self.left[0]
        if word == ":":
            self.line.het = True
            self.line.passed.append(self.left.pop(0))
        elif word == "--":
            self.left.pop(0)
            self.line.dashes = True
            return False
        elif word.startswith("--"):
            self._parse_long_option(self.left.pop(0))
        elif word.startswith("-") and word != "-":
            self._parse_short_options(self.left.pop(0))
        else:
            return False
        return True

    def _parse_long_option(self, word: str) -> None:
        typed, equals, value = word[2:].partition("=")
        if typed in HPCTL_OPTIONS:
            place = f"--{typed}"
            taken = _parse_hpctl_option_value(typed, equals, value, self.left, place, place)
            self.line.own[typed] = (*self.line.own.get(typed, ()), taken)
            return
        name = _expand_abbreviated_option(typed)
        if name is None:
            meant = find_closest_option(typed, list(HPCTL_OPTIONS), 0.75)
            if meant:
                raise HpctlError(f"no such option: --{typed}", f"Did you mean {meant}?")
            self.line.unknown.append(word)
        if name == "wrap":  # it may become a script; who does not want one puts it back
            self.line.given[name] = value if equals else (self.left.pop(0) if self.left else "")
            return
        self.line.passed.append(word)
        if name in _VALUED and not equals:
            value = self._take_next_argument_as_value()
        self.line.given[name or typed] = value

    def _parse_short_options(self, word: str) -> None:
        self.line.passed.append(word)
        letters = word[1:]
        while letters:
            name, letters = _SHORT.get(letters[0]), letters[1:]
            if name in _VALUED:
                self.line.given[str(name)] = letters or self._take_next_argument_as_value()
                return
            if name == "no-kill":  # its optional value is whatever is attached
                self.line.given[name] = letters
                return
            if name is None:
                self.line.unknown.append(word)
                return
            self.line.given[name] = ""

    def _take_next_argument_as_value(self) -> str:
        """Return the next word as the value of the option before; sbatch says it where it is
        missing."""
        if not self.left:
            return ""
        value = self.left.pop(0)
        self.line.passed.append(value)
        return value


_VALUED = frozenset(_TAKE_A_VALUE)


_KNOWN = (*_TAKE_A_VALUE, *_FLAGS)


def _expand_abbreviated_option(typed: str) -> str | None:
    """Return the long option that a word means: itself, or the only one that it begins
    (getopt_long)."""
    if typed in _KNOWN:
        return typed
    begun = [name for name in _KNOWN if name.startswith(typed)]
    return begun[0] if len(begun) == 1 else None


SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "ksh93", "mksh"})


_HET = re.compile(r"\s*(hetjob|packjob)(\s|$)", re.IGNORECASE)


class BatchScript(Struct, frozen=True):
    """A script's text and what its leading block asks for.

    `given` is its `#SBATCH` options by long name, `own` what its `#HPCTL` lines say, `late` the
    lines of `#HPCTL` that come after the first command, which are ignored.
    """

    name: str
    lines: tuple[str, ...]
    block: int
    given: dict[str, str]
    own: dict[str, tuple[HpctlOptionValue, ...]]
    het: bool
    late: tuple[int, ...]

    @property
    def text(self) -> str:
        """Return all of it."""
        return "".join(self.lines)

    @property
    def shell(self) -> str:
        """Return the interpreter's name in the `#!` line, seen through env; "" where there is
        none."""
        first = self.lines[0] if self.lines else ""
        if not first.startswith("#!"):
            return ""
        parts = [w.rpartition("/")[2] for w in first[2:].split()]
        if parts[:1] == ["env"]:
            parts = [w for w in parts[1:] if not w.startswith("-") and "=" not in w]
        return parts[0] if parts else ""

    def insert_before_first_command(self, text: str) -> str:
        """Return the script with `text` put in before its first command."""
        head = "".join(self.lines[: self.block])
        if head and not head.endswith("\n"):
            head += "\n"
        return head + text + "".join(self.lines[self.block :])


def parse_batch_script(name: str, text: str) -> BatchScript:
    """Read a script. Raises HpctlError, with the line, for an `#HPCTL` line that means nothing."""
    # Not splitlines: it also breaks at a form feed, a lone \r or U+2028. In the middle of a comment
    # the rest of that line would become a command, and the #SBATCH lines below it be lost.
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1].removesuffix("\n")
    block = _find_directive_block_end(lines)
    options: list[str] = []
    own: dict[str, tuple[HpctlOptionValue, ...]] = {}
    het = False
    for number, line in enumerate(lines[:block], start=1):
        if line.startswith("#SBATCH"):
            het = het or _HET.match(line[7:]) is not None
            options += _split_words(line[7:])
        elif line.startswith("#HPCTL"):
            for option, values in parse_hpctl_directive(line[6:], f"{name}:{number}").items():
                own[option] = (*own.get(option, ()), *values)
    return BatchScript(
        name=name,
        lines=tuple(lines),
        block=block,
        given=parse_sbatch_command_line(options).given,
        own=own,
        het=het,
        late=tuple(
            number
            for number, line in enumerate(lines[block:], start=block + 1)
            if line.startswith("#HPCTL")
        ),
    )


def _find_directive_block_end(lines: list[str]) -> int:
    for index, line in enumerate(lines):
        if line.strip() and not line.lstrip().startswith("#"):
            return index
    return len(lines)


def _split_words(rest: str) -> list[str]:
    try:
        return shlex.split(rest, comments=True)
    except ValueError:
        return []  # an open quote: sbatch names file and line itself


def build_wrap_script(command: str) -> BatchScript:
    """Return the script that sbatch itself makes of `--wrap` (src/sbatch/sbatch.c, script_wrap)."""
    text = f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{command}\n"
    lines = tuple(text.splitlines(keepends=True))
    return BatchScript("wrap", lines, block=3, given={}, own={}, het=False, late=())

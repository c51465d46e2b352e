"""sbatch's command line, read the way sbatch reads it: enough to find the script and its options.

hpctl passes every option through untouched; it must only know which of them take the next word,
so that it does not mistake a value for the script. The table is src/common/slurm_opt.c's (22.05
to 26.11). A long option that is not in it is taken for a flag unless it carries `=`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hpctl.errors import HpctlError
from hpctl.jobs import own
from hpctl.jobs.own import Mention


def _names(words: str) -> tuple[str, ...]:
    return tuple(words.split())


_TAKE_A_VALUE = _names("""
    account acctg-freq array autocomplete batch bb bbf begin chdir cluster cluster-constraint
    clusters comment constraint container container-id container-type context core-spec
    cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency
    distribution error exclude export export-file extra extra-node-info gid gpu-bind gpu-freq gpus
    gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint input job-name
    kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu
    mem-per-gpu mem-update mincpus network nodefile nodelist nodes ntasks ntasks-per-core
    ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode output partition
    power prefer priority profile qos reservation resources runtime segment signal
    sockets-per-node switches tasks-per-node thread-spec threads-per-core time time-min tmp
    tres-bind tres-per-task uid wait-all-nodes wckey wrap
""")
# Optional values come only after `=`, so they never take the next word.
_FLAGS = _names("""
    consolidate-segments contiguous exclusive external get-user-env help hold ignore-pbs nice
    no-kill no-requeue oom-kill-step overcommit oversubscribe parsable propagate quiet reboot
    requeue resv-ports spread-job spread-segments stepmgr test-only usage use-min-nodes verbose
    version wait
""")
_SHORT = {
    "A": "account", "a": "array", "b": "begin", "D": "chdir", "M": "clusters", "C": "constraint",
    "S": "core-spec", "c": "cpus-per-task", "d": "dependency", "m": "distribution", "e": "error",
    "x": "exclude", "B": "extra-node-info", "G": "gpus", "i": "input", "J": "job-name",
    "L": "licenses", "F": "nodefile", "w": "nodelist", "N": "nodes", "n": "ntasks",
    "o": "output", "p": "partition", "q": "qos", "t": "time", "h": "help", "H": "hold",
    "k": "no-kill", "O": "overcommit", "s": "oversubscribe", "Q": "quiet", "v": "verbose",
    "V": "version", "W": "wait",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What was typed after `hpctl sbatch`.

    `given` maps sbatch's long option names to their last value ("" for flags), `own` hpctl's
    options to all of theirs. `passed` is what goes to sbatch before the script, word for word,
    but for `--wrap`, whose command is in `given`.
    """

    passed: tuple[str, ...] = ()
    script: str | None = None
    arguments: tuple[str, ...] = ()
    given: dict[str, str] = field(default_factory=dict)
    own: dict[str, tuple[Mention, ...]] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    het: bool = False


def parse(words: Sequence[str]) -> CommandLine:
    """Read a command line. Raises HpctlError for a misspelt or unfinished option of hpctl's."""
    reader = _Reader(list(words))
    while reader.left and reader.take_option():
        pass
    return CommandLine(
        passed=tuple(reader.passed),
        script=reader.left[0] if reader.left else None,
        arguments=tuple(reader.left[1:]),
        given=reader.given,
        own=reader.own,
        unknown=tuple(reader.unknown),
        het=reader.het,
    )


class _Reader:
    """One pass over the words, as getopt_long does with a leading `+`: stop at the script."""

    def __init__(self, words: list[str]) -> None:
        self.left = words
        self.passed: list[str] = []
        self.given: dict[str, str] = {}
        self.own: dict[str, tuple[Mention, ...]] = {}
        self.unknown: list[str] = []
        self.het = False

    def take_option(self) -> bool:
        """Take one option (and its value); False at the script."""
        word = self.left[0]
        if word == ":":
            self.het = True
            self.passed.append(self.left.pop(0))
        elif word == "--":
            self.left.pop(0)
            return False
        elif word.startswith("--"):
            self._long(self.left.pop(0))
        elif word.startswith("-") and word != "-":
            self._short(self.left.pop(0))
        else:
            return False
        return True

    def _long(self, word: str) -> None:
        typed, equals, value = word[2:].partition("=")
        if typed in own.OPTIONS:
            self._own(typed, equals, value)
            return
        name = _complete(typed)
        if name is None:
            if meant := own.near(typed, list(own.OPTIONS), 0.75):
                raise HpctlError(f"no such option: --{typed}", f"Did you mean {meant}?")
            self.unknown.append(word)
        if name == "wrap":  # it may become a script; who does not want one puts it back
            self.given[name] = value if equals else (self.left.pop(0) if self.left else "")
            return
        self.passed.append(word)
        if name in _VALUED and not equals:
            value = self._value()
        self.given[name or typed] = value

    def _own(self, name: str, equals: str, value: str) -> None:
        option = own.OPTIONS[name]
        if option.value and not equals:
            value = self.left.pop(0) if self.left else ""
        if option.value and not value:
            raise own.needs_value(name, f"--{name}")
        if equals and not option.value:
            raise HpctlError(f"--{name} takes no value", f"Write --{name}.")
        self.own[name] = (*self.own.get(name, ()), Mention(value, f"--{name}"))

    def _short(self, word: str) -> None:
        self.passed.append(word)
        letters = word[1:]
        while letters:
            name, letters = _SHORT.get(letters[0]), letters[1:]
            if name in _VALUED:
                self.given[str(name)] = letters or self._value()
                return
            if name == "no-kill":  # its optional value is whatever is attached
                self.given[name] = letters
                return
            if name is None:
                self.unknown.append(word)
                return
            self.given[name] = ""

    def _value(self) -> str:
        """The next word as the value of the option before; sbatch says it where it is missing."""
        if not self.left:
            return ""
        value = self.left.pop(0)
        self.passed.append(value)
        return value


_VALUED = frozenset(_TAKE_A_VALUE)
_KNOWN = (*_TAKE_A_VALUE, *_FLAGS)


def _complete(typed: str) -> str | None:
    """The long option that a word means: itself, or the only one that it begins (getopt_long)."""
    if typed in _KNOWN:
        return typed
    begun = [name for name in _KNOWN if name.startswith(typed)]
    return begun[0] if len(begun) == 1 else None

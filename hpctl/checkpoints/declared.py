"""Files of a checkpoint that no format recognizes, as patterns of their names declare them.

A pattern is a glob below the checkpoint directory in which `{step}` is the number of the step:
`ckpt_{step}.pt`, `step_{step}/rank*.bin`. A directory that it matches declares all files in it. All
files of one step, of all patterns, are one checkpoint (a file a rank, the model and the optimizer
in separate files). Without `{step}` there is one checkpoint, which is saved over in place, and its
step is what its files record. Files of torch.save whose names show which rank wrote them count as
declared.

No file records what belongs to a step. A set is passed over where a pattern has no file of it or
fewer than the step before, where numbered files have a gap, where a start of the job falls between
its files, or where a file is damaged as far as its container (`contents`) shows that. Where no step
before shows how many ranks save, the files' own `world_size` does, else the number of tasks that
the job's start has noted; fewer are the beginning of an interrupted save, unless the same start
went on to save a later step. Files of rank 0 only are unproven and count: in many programs no other
rank saves. The result names what remains unproven.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

from msgspec import Struct

from hpctl.checkpoints.contents import (
    CheckpointFileSummary,
    check_unverified_files_unchanged,
    inspect_checkpoint_file,
)
from hpctl.checkpoints.files import (
    MAX_ENTRIES,
    TEMPORARY,
    CheckpointClaim,
    IncompleteCheckpointError,
    RecordedJobStart,
    UnverifiedContent,
    check_files_from_single_job_start,
    find_untrusted_owner,
    read_recorded_job_starts,
)
from hpctl.checkpoints.formats import torch_files
from hpctl.checkpoints.patterns import (
    FilePattern,
    make_pattern_from_name,
    parse_checkpoint_file_patterns,
)

_COMPOSER = re.compile(r".*ep\d+-ba\d+.*rank0\.pt|latest-rank0\.pt")
_COUNTED = re.compile(r"(?:rank|part|shard|proc|process|worker|[tpdm]p)[-_=]?$", re.IGNORECASE)
"""The text before a number that counts from 0 or 1 without a gap."""
_NUMBERED = re.compile(r"(\D*)(\d{1,9})(\D*)")
_RANK = re.compile(r"(?:^|[^a-z])(?:global[-_]?)?rank[-_=]?$", re.IGNORECASE)
"""The text before the number of a rank."""
_RANK_OF_SOME = re.compile(r"(?:local|node|[a-z]p)[-_]?rank[-_=]?$", re.IGNORECASE)
"""The same of a number among the ranks of a node or a group."""


class PatternMatchedFile(Struct, frozen=True):
    """One file that a pattern matches. `role` is what its wildcards matched, such as the rank."""

    path: Path
    pattern: int
    role: tuple[str, ...]


class StepFileSet(Struct, frozen=True):
    """The files of one step."""

    step: int | None
    files: tuple[PatternMatchedFile, ...]

    def of(self, pattern: int) -> list[PatternMatchedFile]:
        """Return the files of one pattern."""
        return [file for file in self.files if file.pattern == pattern]

    def place(self, root: Path) -> Path:
        """Return the path that a program resumes from: the file, else the directory that holds the
        files and no other step's, else the first file."""
        first = self.files[0].path
        if not self.files[1:]:
            return first
        common = Path(os.path.commonpath([file.path.parent for file in self.files]))
        return first if common == root else common


class FileSetSearchResult(Struct, frozen=True):
    """The matches of patterns: a claim for each step, and the entries of the directory that are
    part of one."""

    claims: tuple[tuple[Path, CheckpointClaim], ...]
    names: frozenset[str]


def find_checkpoint_file_sets(
    root: Path, patterns: Sequence[FilePattern], ranks: Sequence[str] = ()
) -> FileSetSearchResult:
    """Return what the patterns match below a directory, and files that name their rank.

    `ranks` are the names of such files in it: each pattern of theirs is a separate checkpoint.
    Raises OSError where a directory cannot be read or has more than MAX_ENTRIES entries.
    """
    found = _FileSetCollector(root)
    if patterns:
        found.add(patterns)
    loose = [name for name in ranks if name not in found.names]
    for implied in parse_checkpoint_file_patterns(
        sorted({make_pattern_from_name(name) for name in loose})
    ):
        found.add([implied])
    return FileSetSearchResult(tuple(found.claims), frozenset(found.names))


class _FileSetCollector:
    """The claims of several groups of patterns, and the names that are already part of one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.claims: list[tuple[Path, CheckpointClaim]] = []
        self.names: set[str] = set()

    @cached_property
    def starts(self) -> list[RecordedJobStart]:
        """Return the starts of the job, read where there is a set."""
        return read_recorded_job_starts(self.root)

    def add(self, patterns: Sequence[FilePattern]) -> None:
        """Add what the patterns match together and no other group has matched."""
        taken = frozenset(self.names)
        accepted: StepFileSet | None = None
        sets = _group_files_by_step(self.root, patterns)
        for each, newer in zip_longest(sets, sets[1:]):
            names = {file.path.relative_to(self.root).parts[0] for file in each.files}
            if names <= taken:
                continue
            self.names |= names
            proof = _FileSetVerifier(
                self.root, each, patterns, self.starts, older=accepted, newer=newer
            )
            self.claims.append((each.place(self.root), proof.claim()))
            if proof.is_reference_for_newer_sets():
                accepted = each


def _group_files_by_step(root: Path, patterns: Sequence[FilePattern]) -> list[StepFileSet]:
    """Return the files by step, the oldest step first."""
    found: dict[int | None, list[PatternMatchedFile]] = {}
    left = [MAX_ENTRIES]
    for number, pattern in enumerate(patterns):
        for step, role, path in _find_matching_files(root, pattern.parts, (None, ()), left):
            found.setdefault(step, []).append(PatternMatchedFile(path, number, role))
    shared = found.pop(None, []) if len(found) > 1 else []
    steps = sorted(found.items(), key=lambda item: -1 if item[0] is None else item[0])
    return [
        StepFileSet(step, tuple(sorted([*files, *shared], key=lambda f: (f.pattern, f.path))))
        for step, files in steps
    ]


_Seen = tuple[int | None, tuple[str, ...]]


def _find_matching_files(
    directory: Path, parts: Sequence[re.Pattern[str]], seen: _Seen, left: list[int]
) -> Iterator[tuple[int | None, tuple[str, ...], Path]]:
    """Yield the files that match, with their step and what the wildcards matched."""
    for entry in _scan_possible_checkpoint_entries(directory, left):
        match = parts[0].fullmatch(entry.name)
        if match is None:
            continue
        groups = match.groupdict()
        step = int(groups["step"]) if "step" in groups else seen[0]
        at = match.re.groupindex.get("step")
        role = (*seen[1], *(text for n, text in enumerate(match.groups(), 1) if n != at))
        path = directory / entry.name
        if parts[1:]:
            if entry.is_dir():
                yield from _find_matching_files(path, parts[1:], (step, role), left)
        elif entry.is_file(follow_symlinks=False):
            yield step, role, path
        elif entry.is_dir(follow_symlinks=False):
            for file in _list_files_below(path, left):
                yield step, (*role, str(file.relative_to(path))), file


def _list_files_below(directory: Path, left: list[int]) -> Iterator[Path]:
    waiting = [directory]
    while waiting:
        place = waiting.pop()
        for entry in _scan_possible_checkpoint_entries(place, left):
            if entry.is_dir(follow_symlinks=False):
                waiting.append(place / entry.name)
            elif entry.is_file(follow_symlinks=False):
                yield place / entry.name


def _scan_possible_checkpoint_entries(
    directory: Path, left: list[int]
) -> Iterator[os.DirEntry[str]]:
    """Yield the entries that may be part of a finished checkpoint, up to the limit of entries."""
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                left[0] -= 1
                if left[0] < 0:
                    raise OSError(f"{directory} has more than {MAX_ENTRIES} entries")
                hidden = entry.name.startswith(".") or TEMPORARY in entry.name
                if not hidden and entry.name.isprintable():
                    yield entry
    except (FileNotFoundError, NotADirectoryError):
        return  # removed since it was listed


def _read_step_from_file_set(files: StepFileSet) -> int | None:
    """Return the step that a file without one in its name records; None where none does."""
    for file in files.files:
        try:
            step = inspect_checkpoint_file(file.path, deep=False).step
        except IncompleteCheckpointError:
            continue  # the proof reports it
        if step is not None:
            return step
    return None


def _describe_files_missing_since_last_step(
    files: StepFileSet, patterns: Sequence[FilePattern], older: StepFileSet
) -> str:
    """Return which files are missing compared with the step before; "" where none is."""
    for number, pattern in enumerate(patterns):
        count, wanted = len(files.of(number)), len(older.of(number))
        if count < wanted:
            of = "the one before" if older.step is None else f"step {older.step}"
            return f"{count} of {wanted} files of {pattern.text} are there, as {of} has them"
    return ""


class _FileSetVerifier(Struct, frozen=True):
    """The proof of one set. `older` is the newest set before it that was complete, `newer` the set
    after it, whatever it is."""

    root: Path
    files: StepFileSet
    patterns: Sequence[FilePattern]
    starts: Sequence[RecordedJobStart]
    older: StepFileSet | None
    newer: StepFileSet | None

    def claim(self) -> CheckpointClaim:
        """Return the claim that `prove` proves."""
        files = self.files
        step = _read_step_from_file_set(files) if files.step is None else files.step
        return CheckpointClaim(step, None, self.prove, digests=False)

    def is_reference_for_newer_sets(self) -> bool:
        """Return whether newer sets need as many files as this one, by what its names and the
        starts show."""
        if self.older is not None:
            return not _describe_files_missing_since_last_step(
                self.files, self.patterns, self.older
            )
        count = self._count_ranks()
        try:
            return (
                not count
                or count >= self._count_tasks_of_job_start(self.files)
                or self._has_later_set_of_same_job_start()
            )
        except FileNotFoundError:
            return False  # removed since it was listed

    def prove(self, deep: bool) -> UnverifiedContent | None:
        """Return what is unproven, None for nothing. Raises IncompleteCheckpointError, OSError."""
        self._check_for_missing_files()
        contents = [(file, self._inspect_trusted_set_file(file, deep)) for file in self.files.files]
        check_files_from_single_job_start(
            self.root / "set", [content.modified_ns for _, content in contents]
        )
        self._check_for_mixed_steps([content.step for _, content in contents])
        is_counted = self._has_files_of_all_ranks([content.ranks for _, content in contents])
        unknown = [(file, each) for file, each in contents if not each.is_proved]
        check_unverified_files_unchanged([(file.path, each) for file, each in unknown])
        reasons = [
            *self._list_unverified_properties(is_counted),
            *_describe_unverified_contents(unknown),
        ]
        return UnverifiedContent("; ".join(reasons)) if reasons else None

    def _check_for_missing_files(self) -> None:
        for number, pattern in enumerate(self.patterns):
            files = self.files.of(number)
            if not files:
                raise IncompleteCheckpointError(f"no file matches the pattern {pattern.text}")
            gap = _find_missing_rank_number(pattern, files)
            if gap:
                raise IncompleteCheckpointError(
                    f"file number {gap} of the pattern {pattern.text} is missing"
                )
        missing = (
            _describe_files_missing_since_last_step(self.files, self.patterns, self.older)
            if self.older
            else ""
        )
        if missing:
            raise IncompleteCheckpointError(missing)

    def _inspect_trusted_set_file(
        self, file: PatternMatchedFile, deep: bool
    ) -> CheckpointFileSummary:
        owner = find_untrusted_owner(file.path)
        if owner is not None:
            raise IncompleteCheckpointError(
                f"{file.path.name} belongs to another user, {owner}, so hpctl does not trust it"
            )
        content = inspect_checkpoint_file(file.path, deep=deep)
        before = self._find_file_size_in_previous_set(file) if not content.is_proved else 0
        if content.size < 0.9 * before:
            raise IncompleteCheckpointError(
                f"{file.path.name} has {content.size} bytes, but had {before} bytes one step "
                "earlier: it may be cut off"
            )
        return content

    def _find_file_size_in_previous_set(self, file: PatternMatchedFile) -> int:
        """Return the size of the same file of the step before, 0 where there is none."""
        for other in self.older.files if self.older else ():
            if (other.pattern, other.role) == (file.pattern, file.role):
                try:
                    return other.path.stat().st_size
                except OSError:
                    return 0
        return 0

    def _check_for_mixed_steps(self, steps: list[int | None]) -> None:
        known = sorted({step for step in steps if step is not None})
        if len(known) > 1:
            raise IncompleteCheckpointError(
                f"its files are from different steps, {known[0]} and {known[-1]}: a newer save "
                "overwrote a part of them"
            )

    def _has_files_of_all_ranks(self, recorded: list[int | None]) -> bool:
        """Return whether each rank of the run has its files, False where that is not known.

        Raises IncompleteCheckpointError where some have none, and nothing shows that they do not
        save.
        """
        count = self._count_ranks()
        expected = max((ranks for ranks in recorded if ranks), default=0)
        expected = expected or self._count_tasks_of_job_start(self.files)
        if not count or not expected:
            return False
        known = (
            self._has_later_set_of_same_job_start()
            or self._has_same_rank_count_as_previous_set(expected)
            or self._has_only_first_rank()
        )
        if count < expected and not known:
            raise IncompleteCheckpointError(
                f"only {count} of {expected} ranks have saved their files"
            )
        return count == expected

    def _count_ranks(self) -> int:
        """Return how many ranks have files, by the pattern that has the fewest; 0 where no name
        shows it."""
        return min(map(len, self._find_rank_numbers_in_file_names()), default=0)

    def _has_only_first_rank(self) -> bool:
        """Return whether no rank but rank 0 has files: it may save for all."""
        return all(numbers == {0} for numbers in self._find_rank_numbers_in_file_names())

    def _find_rank_numbers_in_file_names(self) -> list[set[int]]:
        """Return the ranks that have files, for each place of the patterns that names a rank."""
        ranks = []
        for number, pattern in enumerate(self.patterns):
            for before, _, numbers in _parse_rank_numbers_in_file_names(
                pattern, self.files.of(number)
            ):
                if _RANK.search(before) and not _RANK_OF_SOME.search(before):
                    ranks.append(numbers)
        return ranks

    def _count_tasks_of_job_start(self, files: StepFileSet) -> int:
        """Return how many tasks the start has that wrote a set; 0 where that is unknown."""
        tasks = {start.tasks for start in self.starts}
        if tasks == {0} or not tasks:
            return 0
        first_ns, _ = _find_file_modification_time_span(files.files[:1])
        before = [start for start in self.starts if start.at_ns <= first_ns]
        return max(before, key=lambda start: start.at_ns).tasks if before else 0

    def _has_later_set_of_same_job_start(self) -> bool:
        """Return whether the start that wrote this set continued and saved the one after it."""
        if self.newer is None:
            return False
        first_ns, last_ns = _find_file_modification_time_span(self.files.files)
        next_ns, _ = _find_file_modification_time_span(self.newer.files)
        starts = [start.at_ns for start in self.starts]
        is_noted = any(at_ns <= first_ns for at_ns in starts)
        return is_noted and last_ns <= next_ns and not any(last_ns < s <= next_ns for s in starts)

    def _has_same_rank_count_as_previous_set(self, expected: int) -> bool:
        """Return whether the set before is of a run of `expected` ranks, too."""
        if self.older is None:
            return False
        recorded = inspect_checkpoint_file(self.older.files[0].path, deep=False).ranks
        return (recorded or self._count_tasks_of_job_start(self.older)) == expected

    def _list_unverified_properties(self, is_counted: bool) -> Iterator[str]:
        several = self.files.files[1:] or not all(
            each.is_single_file_pattern for each in self.patterns
        )
        if (
            several
            and self.older is None
            and not is_counted
            and not self._has_later_set_of_same_job_start()
        ):
            count = len(self.files.files)
            yield f"whether a step has more than {count} file{'s' * (count != 1)}"
        if self.files.step is None and self.files.files[1:]:
            yield "whether its files are of one save"


def _describe_unverified_contents(
    unknown: Sequence[tuple[PatternMatchedFile, CheckpointFileSummary]],
) -> Iterator[str]:
    if unknown:
        others = f" and {len(unknown) - 1} more" if unknown[1:] else ""
        yield f"what is in {unknown[0][0].path.name}{others}"


_Numbers = tuple[str, str, set[int]]
"""The numbers that a wildcard matched, with the text before and after them."""


def _parse_rank_numbers_in_file_names(
    pattern: FilePattern, files: Sequence[PatternMatchedFile]
) -> Iterator[_Numbers]:
    """Yield the numbers of ranks or parts in the names of files."""
    roles = [file.role for file in files]
    for number, column in enumerate(zip(*roles, strict=False)):
        literal = pattern.before[number] if number < len(pattern.before) else ""
        found: dict[tuple[str, str], set[int]] = {}
        for text in column:
            match = _NUMBERED.fullmatch(text)
            if match is not None and _COUNTED.search(literal + match[1]):
                found.setdefault((match[1], match[3]), set()).add(int(match[2]))
        for (before, after), numbers in found.items():
            yield literal + before, after, numbers


def _find_missing_rank_number(pattern: FilePattern, files: Sequence[PatternMatchedFile]) -> str:
    """Return which rank or part is missing where wildcards matched their numbers; "" for none."""
    for before, after, numbers in _parse_rank_numbers_in_file_names(pattern, files):
        expected = range(min(*numbers, 1), max(numbers))
        gap = next((each for each in expected if each not in numbers), None)
        if gap is not None:
            return f"{before}{gap}{after}"
    return ""


def _find_file_modification_time_span(files: Sequence[PatternMatchedFile]) -> tuple[int, int]:
    """Return when the first and the last of files were written, in ns since the epoch. Raises
    OSError."""
    times = [file.path.stat().st_mtime_ns for file in files]
    return min(times), max(times)


def is_single_rank_torch_file(path: Path) -> bool:
    """Return whether a file of torch.save is one rank's of several, by its name.

    Composer's rank 0 saves everything, under a name like that.
    """
    if not (
        path.name.endswith(torch_files.SUFFIXES) and torch_files.is_single_rank_file(path.name)
    ):
        return False
    return _COMPOSER.fullmatch(path.name) is None

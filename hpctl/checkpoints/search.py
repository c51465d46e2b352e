"""The newest whole checkpoint under a directory, chosen by what the files prove.

A name, a modification time or a `latest` pointer never decides: each of those can be newer than the
data. A framework is one `CheckpointFormat` in FORMATS: how to recognize one of its checkpoint
directories and read its step, and how to prove that it is whole.
"""

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpctl.checkpoints import hpctl_checkpoint
from hpctl.checkpoints.declared import (
    FileSetSearchResult,
    find_checkpoint_file_sets,
    is_single_rank_torch_file,
)
from hpctl.checkpoints.files import (
    TEMPORARY,
    CheckpointCandidateListing,
    CheckpointClaim,
    CheckpointDefect,
    CheckpointFormat,
    IncompleteCheckpointError,
    Place,
    RemotePath,
    UnfinishedCheckpointSaveError,
    UnverifiableCheckpointError,
    UnverifiedContent,
    find_untrusted_owner,
    list_checkpoint_candidate_entries,
    parse_step_from_name,
    run_work_for_each_item,
)
from hpctl.checkpoints.formats import (
    accelerate,
    deepspeed,
    flax_file,
    hf_trainer,
    manifest,
    megatron,
    nvrx,
    orbax,
    torch_files,
    torchtune,
)
from hpctl.checkpoints.marks import (
    NO_MARKS,
    CheckpointMarkFile,
    CheckpointMarks,
    read_checkpoint_marks,
    read_median_write_time,
)
from hpctl.checkpoints.patterns import FilePattern, suggest_checkpoint_file_patterns

MAX_ENTRIES = 100_000
"""Limit of the entries of the directory. More is an error, not a smaller answer."""

_NOT_CHECKPOINTS = re.compile(
    r"\..*|(.*[_-])?logs?|tensorboard|tb|wandb|mlruns|recipe_state|.*tfevents.*"
    r"|.*\.(log|out|err|txt|jsonl|symlink)",
    re.DOTALL,
)
"""Names of files that lie next to checkpoints: a first start must not be warned about the log of
its job."""


class CompleteCheckpoint(Struct, frozen=True):
    """A checkpoint that was proved whole (by sizes, or by digests where `deep`)."""

    path: Place
    step: int | None
    world_size: int | None
    format: str
    deep: bool
    origin: Place | None = None
    """The place that it was fetched from."""
    unproven: str = ""
    """The part of declared files that nothing proves, for a person."""
    mark: CheckpointMarkFile | None = None
    """The mark by which no run resumes from it."""


class SkippedCheckpoint(Struct, frozen=True):
    """A directory that was not chosen. `unreadable`: it may be whole, but the storage failed, or
    a file is larger than hpctl reads.

    `claimed` is false for a directory that nothing marks as a finished checkpoint: still being
    written, or of another kind. `format` is None where none was recognised; `holds` then describes
    what is there, `11 files`: it may be a checkpoint in the program's own format.
    """

    path: Place
    why: str
    unreadable: bool = False
    claimed: bool = True
    format: str | None = None
    holds: str = ""
    patterns: tuple[str, ...] = ()
    """Patterns for --checkpoint-files that match its files."""
    mark: CheckpointMarkFile | None = None
    """The mark by which it is passed over."""


class CheckpointCandidate(Struct, frozen=True):
    """A directory or file of a known format that names its step."""

    path: Place
    format: str
    claim: CheckpointClaim


def _detect_manifest_checkpoint(
    layout: CheckpointCandidateListing,
) -> CheckpointClaim | CheckpointDefect | None:
    document = manifest.read_manifest(layout.path) if layout.has(hpctl_checkpoint.NAME) else None
    if document is None or isinstance(document, manifest.ForeignManifestDefect):
        return None  # many tools have such a file: another format may recognize the directory
    if isinstance(document, CheckpointDefect):
        return document
    whole = document

    def verify_manifest(deep: bool) -> CheckpointDefect | None:
        return manifest.verify_manifest_files(layout.path, whole, deep=deep)

    return CheckpointClaim(whole.step, whole.world_size, verify_manifest)


FORMATS: tuple[CheckpointFormat, ...] = (
    CheckpointFormat("generic", _detect_manifest_checkpoint),
    # A framework that wraps another's files comes before that other.
    CheckpointFormat("hf-trainer", hf_trainer.detect_hf_trainer_checkpoint),
    CheckpointFormat("accelerate", accelerate.detect_accelerate_checkpoint),
    CheckpointFormat("nemo", megatron.detect_nemo_checkpoint),
    CheckpointFormat("lightning", torch_files.detect_lightning_checkpoint),
    CheckpointFormat("lightning", deepspeed.detect_lightning_deepspeed_checkpoint),
    CheckpointFormat("megatron-torch-dist", megatron.detect_torch_dist_checkpoint),
    CheckpointFormat("megatron-legacy", megatron.detect_megatron_legacy_checkpoint),
    CheckpointFormat("deepspeed", deepspeed.detect_deepspeed_checkpoint),
    CheckpointFormat("orbax", orbax.detect_orbax_checkpoint),
    CheckpointFormat("torch-dcp", torch_files.detect_dcp_checkpoint),
    CheckpointFormat("torchtitan-hf", hf_trainer.detect_torchtitan_checkpoint),
    CheckpointFormat("torchtune", torchtune.detect_torchtune_checkpoint),
    CheckpointFormat("torch-save", torch_files.detect_torch_save_checkpoint),
    CheckpointFormat("flax", flax_file.detect_flax_checkpoint),
    CheckpointFormat(nvrx.FORMAT, nvrx.detect_nvrx_checkpoint),
)


DECLARED = "declared"
"""The format of files that --checkpoint-files names, and of one rank's each."""


def list_checkpoint_candidates(
    place: Place, world_size: int | None = None, declared: Sequence[FilePattern] = ()
) -> tuple[list[CheckpointCandidate], list[SkippedCheckpoint]]:
    """Return the candidates among the immediate children, newest step first, and the others. Raises
    OSError where the place itself cannot be read: that is never "nothing".

    The place may also be one of NVRx's local checkpoints itself, or hold several. `declared` are
    patterns of files below it that no format recognizes; they count in a directory, not in S3.
    """
    passed: list[SkippedCheckpoint] = []
    found, others = _list_possible_checkpoint_children(place)
    sets = _find_declared_checkpoint_file_sets(place, declared, found)
    taken = {path for path, _ in found if path.name in sets.names}
    found = [pair for pair in found if pair[0] not in taken]
    others = [name for name in others if name not in sets.names]
    names = frozenset(child.name for child, is_file in found if not is_file)
    candidates = _list_nvrx_iterations(CheckpointCandidateListing(place, names, world_size))
    candidates += [CheckpointCandidate(path, DECLARED, each) for path, each in sets.claims]
    if any(each.format == nvrx.FORMAT for each in candidates):
        found = [(child, is_file) for child, is_file in found if not child.name.isdigit()]
    for (_, is_file), claimed in zip(
        found,
        run_work_for_each_item(
            place, found, lambda child: detect_checkpoint_candidate(child[0], world_size)
        ),
        strict=True,
    ):
        if isinstance(claimed, CheckpointCandidate) and claimed.format == nvrx.FORMAT:
            candidates += _list_nvrx_iterations(
                list_checkpoint_candidate_entries(claimed.path, world_size)
            )
        elif isinstance(claimed, CheckpointCandidate):
            candidates.append(claimed)
        elif claimed.claimed or not is_file:
            passed.append(claimed)
        else:
            others.append(claimed.path.name)
    passed = _add_suggested_patterns(passed)
    if others and not candidates and not any(each.claimed for each in passed):
        unknown = _make_unrecognized_checkpoint(place, len(others))
        passed.append(replace(unknown, patterns=suggest_checkpoint_file_patterns(others)))
    # Of two with one step any complete one is right, but the choice must not depend on the scan's
    # order.
    candidates.sort(key=_make_newest_first_key, reverse=True)
    return candidates, passed


def _find_declared_checkpoint_file_sets(
    place: Place, declared: Sequence[FilePattern], found: list[tuple[Place, bool]]
) -> FileSetSearchResult:
    if isinstance(place, RemotePath):
        return FileSetSearchResult((), frozenset())
    files = [path for path, is_file in found if is_file and isinstance(path, Path)]
    ranks = [path.name for path in files if is_single_rank_torch_file(path)]
    return find_checkpoint_file_sets(place, declared, ranks)


def _add_suggested_patterns(passed: list[SkippedCheckpoint]) -> list[SkippedCheckpoint]:
    """Add to each directory that no format recognizes the pattern of its names."""
    patterns = suggest_checkpoint_file_patterns(each.path.name for each in passed if each.holds)
    return [replace(each, patterns=patterns) if each.holds else each for each in passed]


def is_non_checkpoint_file(name: str) -> bool:
    """Return whether a file, by its name, is one that a program keeps next to its checkpoints, such
    as a log."""
    return _NOT_CHECKPOINTS.fullmatch(name) is not None


def has_temporary_name(name: str) -> bool:
    """Return whether its writer will still rename it."""
    return TEMPORARY in name or orbax.TEMPORARY in name


def detect_checkpoint_candidate(
    path: Place, world_size: int | None = None
) -> CheckpointCandidate | SkippedCheckpoint:
    """Return which format a directory or file is of and what it claims, or why it is passed
    over."""
    if has_temporary_name(path.name):
        return SkippedCheckpoint(path, "still under its temporary name", claimed=False)
    if not path.name.isprintable():
        # The path goes through a shell variable and one line of text on its way to the job.
        return SkippedCheckpoint(path, "its name has unprintable characters", claimed=False)
    try:
        owner = find_untrusted_owner(path)
        if owner is not None:
            why = f"user {owner} owns it, and not you, root or the owner of the directory it is in"
            return SkippedCheckpoint(path, why)
        try:
            return _detect_candidate_format(path, world_size)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            # NFS answers so for a name that was replaced meanwhile, S3 for an object; the next
            # search of that name finds its successor.
            return _detect_candidate_format(
                path.without_snapshot() if isinstance(path, RemotePath) else path, world_size
            )
    except OSError as error:
        return SkippedCheckpoint(path, format_storage_error(error), unreadable=True)
    except IncompleteCheckpointError as defect:
        return _make_defective_skipped_checkpoint(path, defect, None)


def verify_checkpoint_candidate(
    candidate: CheckpointCandidate, *, deep: bool
) -> CompleteCheckpoint | SkippedCheckpoint:
    """Prove the claim of a candidate."""
    path, name, claim = candidate.path, candidate.format, candidate.claim
    try:
        try:
            defect = claim.prove(deep)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            # Replaced meanwhile: what it claims now may differ, too.
            again = detect_checkpoint_candidate(
                path.without_snapshot() if isinstance(path, RemotePath) else path, claim.world_size
            )
            if isinstance(again, SkippedCheckpoint):
                return again
            claim = again.claim
            defect = claim.prove(deep)
    except OSError as error:
        return SkippedCheckpoint(path, format_storage_error(error), unreadable=True, format=name)
    except IncompleteCheckpointError as raised:
        return _make_defective_skipped_checkpoint(path, raised, name)
    unproven = str(defect) if isinstance(defect, UnverifiedContent) else ""
    if defect is not None and not unproven:
        return SkippedCheckpoint(path, defect, format=name)
    digests = deep and claim.digests
    return CompleteCheckpoint(path, claim.step, claim.world_size, name, digests, unproven=unproven)


def format_storage_error(error: OSError) -> str:
    """Return the text of an error of the storage, for a person."""
    what = error.strerror or error
    if error.errno == errno.ESTALE:
        what = f"{what}: replaced or removed by another node; not whole as far as can be seen"
    if isinstance(error.filename, str | os.PathLike):
        return f"cannot be read: {what} ({os.path.basename(error.filename)[:80]})"
    return f"cannot be read: {what}"


def _list_nvrx_iterations(layout: CheckpointCandidateListing) -> list[CheckpointCandidate]:
    return [
        CheckpointCandidate(layout.path, nvrx.FORMAT, each)
        for each in nvrx.list_nvrx_checkpoint_claims(layout)
    ]


def _detect_candidate_format(
    path: Place, world_size: int | None
) -> CheckpointCandidate | SkippedCheckpoint:
    layout = list_checkpoint_candidate_entries(path, world_size)
    for each in FORMATS:
        try:
            claimed = each.claim(layout)
        except IncompleteCheckpointError as defect:
            return _make_defective_skipped_checkpoint(path, defect, each.name)
        if isinstance(claimed, CheckpointDefect):
            return SkippedCheckpoint(path, claimed, format=each.name)
        if claimed is not None:
            return CheckpointCandidate(layout.path, each.name, claimed)
    names = {name for name in layout.names or () if not name.startswith(".")}
    if layout.names is None:
        return _make_unrecognized_checkpoint(path, 1)
    if isinstance(layout.path, RemotePath):
        directories = sum(layout.path.find(name) is None for name in names)
    else:
        directories = 0
        with contextlib.suppress(OSError), os.scandir(layout.path) as entries:
            directories = sum(each.name in names and _is_directory(each) for each in entries)
    found = _make_unrecognized_checkpoint(path, len(names) - directories, directories)
    return replace(found, holds="") if is_non_checkpoint_file(path.name) else found


def _make_unrecognized_checkpoint(
    path: Place, files: int, directories: int = 0
) -> SkippedCheckpoint:
    """Describe what no format recognizes: still being written, the program's own, or others'."""
    count, one, many = (directories, "directory", "directories")
    if files or not directories:
        count, one, many = (files, "file", "files")
    holds = f"{count} {one if count == 1 else many}" if count else ""
    why = f"{holds}, no known format" if holds else "empty"
    return SkippedCheckpoint(path, why, claimed=False, holds=holds)


def _make_defective_skipped_checkpoint(
    path: Place, defect: IncompleteCheckpointError, name: str | None
) -> SkippedCheckpoint:
    return SkippedCheckpoint(
        path,
        str(defect),
        unreadable=isinstance(defect, UnverifiableCheckpointError),
        claimed=not isinstance(defect, UnfinishedCheckpointSaveError),
        format=name,
    )


def _make_newest_first_key(candidate: CheckpointCandidate) -> tuple[int, bool, str]:
    """Return the sort key, newest first. A `best` of the same step may contain less than the one
    next to it."""
    step, name = candidate.claim.step, candidate.path.name
    return (-1 if step is None else step), "best" not in name.lower(), name


_OWN = re.compile(r"\.hpctl(-.*)?", re.DOTALL)
"""Names of what hpctl itself keeps next to checkpoints (run.history.HISTORIES, files.STARTS,
fast.spec.META, fetch.RENAMED)."""


def _list_possible_checkpoint_children(place: Place) -> tuple[list[tuple[Place, bool]], list[str]]:
    """Return sub-directories, and files that torch.save or Lightning may have written (true); and
    the names of other files that may be one."""
    found: list[tuple[Place, bool]] = []
    others: list[str] = []
    for count, (child, is_file) in enumerate(_scan_entries(place), start=1):
        if count > MAX_ENTRIES:
            raise OSError(f"{place} has more than {MAX_ENTRIES} entries")
        if _OWN.fullmatch(child.name):
            continue
        if not is_file or _is_known_checkpoint_file_name(child.name):
            found.append((child, is_file))
        elif not is_non_checkpoint_file(child.name):
            others.append(child.name)
    names = {child.name for child, _ in found}
    found = [pair for pair in found if not _is_link_to_sibling(pair[0], names)]
    return sorted(found, key=lambda pair: str(pair[0])), others


def _is_known_checkpoint_file_name(name: str) -> bool:
    """Return whether a format may recognize a file of that name."""
    return name.endswith(torch_files.SUFFIXES) or flax_file.NAME.fullmatch(name) is not None


def _is_link_to_sibling(child: Place, names: set[str]) -> bool:
    """Return whether it is a link to one of these next to it: `latest`, which a save replaces."""
    with contextlib.suppress(OSError):
        return isinstance(child, Path) and os.readlink(child) in names - {child.name}
    return False


def _scan_entries(place: Place) -> Iterator[tuple[Place, bool]]:
    """Yield what lies directly below, each with whether it is a file."""
    if isinstance(place, RemotePath):
        yield from ((child, child.snapshot is not None) for child in place.children())
        return
    with os.scandir(place) as entries:
        for entry in entries:
            yield place / entry.name, not _is_directory(entry)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return True  # the storage does not answer: the claim of the candidate shows why


OWN_FORMAT = (
    "to have hpctl resume from checkpoints in a format of your own, save them with the file that"
    " `hpctl checkpoint helper` prints"
)
_OWN_DISK = "on this node's own disk, which the job's other nodes cannot read"


class CheckpointTier(Struct, frozen=True):
    """A place to search. `local`: on this node's own disk, which other nodes cannot read."""

    place: Place
    local: bool = False


class UnsearchedPlace(Struct, frozen=True):
    """A place that could not be searched: there may be a newer checkpoint in it."""

    place: str
    why: str


def parse_checkpoint_storage_tiers(
    texts: Iterable[str], place: Callable[[str], Place]
) -> tuple[list[CheckpointTier], list[UnsearchedPlace]]:
    """Return places as a person names them, the nearest kind first: `local:DIR`, DIR, `s3://...`.

    The second value lists those for which `place` raises OSError: they cannot be searched.
    """
    kinds: dict[str, list[CheckpointTier]] = {"local": [], "shared": [], "s3": []}
    unseen = []
    for text in dict.fromkeys(texts):
        local = text.startswith("local:")
        kind = "local" if local else "s3" if text.startswith("s3://") else "shared"
        try:
            kinds[kind].append(CheckpointTier(place(text.removeprefix("local:")), local))
        except OSError as error:
            unseen.append(UnsearchedPlace(text, _describe_storage_error(error)))
    return list(chain.from_iterable(kinds.values())), unseen


class CheckpointSearchResult(Struct, frozen=True):
    """The result of a search. `passed_over` holds what is newer than `found`, and what has no
    step."""

    found: CompleteCheckpoint | None
    passed_over: tuple[SkippedCheckpoint, ...] = ()
    unseen: tuple[UnsearchedPlace, ...] = ()
    marks: CheckpointMarks = NO_MARKS

    @property
    def skip(self) -> str:
        """Return the batches to leave out in a run from `found`, `20:22`; "" for none."""
        return self.marks.find_skipped_batches(self.found.step) if self.found is not None else ""

    @property
    def verdict(self) -> str:
        """Return `found`; `none`: nothing here claims to be a checkpoint; `incomplete`: some do,
        and each is proved not whole; `unreadable`: none found, and the storage failed on some."""
        if self.found is not None:
            return "found"
        if self.unseen or any(p.unreadable for p in self.passed_over):
            return "unreadable"
        return "incomplete" if any(p.claimed for p in self.passed_over) else "none"

    @property
    def caution(self) -> str:
        """Return what to know of a file that is saved over in place, and how to replace it; ""
        otherwise."""
        found = self.found
        if (
            found is None
            or found.format != "torch-save"
            or parse_step_from_name(found.path.name) is not None
        ):
            return ""
        if found.path.name.endswith(".ckpt") or "best" in found.path.name.lower():
            return ""
        return (
            f"{found.path.name} is saved over in place: a save that is interrupted destroys it;"
            f" save to {found.path.name}.tmp and os.replace() it, or put the step in its name"
        )

    @property
    def unrecognized_files_note(self) -> str:
        """Return `11 files in DIR, no known format`, and what to do, where nothing better was
        found; the newest by name where there are several."""
        odd = [p for p in self.passed_over if p.holds]
        if self.verdict != "none" or not odd:
            return ""
        newest = max(
            odd, key=lambda each: (parse_step_from_name(each.path.name) or -1, str(each.path))
        )
        others = f" (and {len(odd) - 1} more)" if odd[1:] else ""
        options = " ".join(f"--checkpoint-files '{each}'" for each in newest.patterns)
        offer = f"to resume from such files, submit with {options}; " if options else ""
        return f"{newest.holds} in {newest.path}{others}, no known format; {offer}{OWN_FORMAT}"


def find_newest_complete_checkpoint_in_tiers(  # noqa: PLR0913 -- the options of `hpctl checkpoint last`
    places: Place | Sequence[CheckpointTier],
    *,
    deep: bool = False,
    nodes: int = 1,
    world_size: int | None = None,
    bring: Callable[[CompleteCheckpoint], CompleteCheckpoint | SkippedCheckpoint] | None = None,
    declared: Sequence[FilePattern] = (),
    most: int | None = None,
) -> CheckpointSearchResult:
    """Return the newest whole checkpoint among the immediate children of a place, or of several
    tiers.

    Of two of the same step the one in the earlier tier wins: name the nearest first. `nodes` is how
    many the job has: on more than one, what lies in a local tier is passed over. `world_size` is
    the number of ranks for formats that do not record it (NVRx local). `bring` may replace the
    chosen checkpoint by another (a copy, for example), or refuse it. `declared` is as for
    `list_checkpoint_candidates`. Checkpoints after step `most` are left out.

    I/O: one scan, one manifest a sub-directory, and one stat a file of each candidate from the
    newest down to the first whole one (with `deep`: their bytes). Raises OSError where a single
    place cannot be read, FileNotFoundError included: that is never "no checkpoint". Of several
    tiers it is in `unseen`, and the others count.
    """
    if isinstance(places, Path | RemotePath):
        candidates, passed = list_checkpoint_candidates(places, world_size, declared)
        unseen: list[UnsearchedPlace] = []
        marks = read_checkpoint_marks([places])
    else:
        candidates, passed, unseen = _list_tier_candidates(places, nodes, world_size, declared)
        marks = read_checkpoint_marks([tier.place for tier in places])
    if most is not None:
        candidates = [each for each in candidates if _get_step_sort_key(each) <= most]
    marked = find_candidates_excluded_by_marks(candidates, marks)
    found = None
    for candidate, mark in zip(candidates, marked, strict=True):
        if mark is not None:
            passed.append(mark)
            continue
        result = verify_checkpoint_candidate(candidate, deep=deep)
        if isinstance(result, CompleteCheckpoint) and bring is not None:
            result = bring(result)
        if isinstance(result, CompleteCheckpoint):
            found = result
            break
        passed.append(result)
    return CheckpointSearchResult(found, tuple(passed), tuple(unseen), marks)


def find_candidates_excluded_by_marks(
    candidates: Sequence[CheckpointCandidate], marks: CheckpointMarks
) -> list[SkippedCheckpoint | None]:
    """Return for each candidate why a mark has it passed over, None where none does.

    An object store records when a file was uploaded. So an object counts as a copy where a
    directory has checkpoints of the same step, and all of them are passed over.
    """
    marked: dict[int, SkippedCheckpoint | None] = {}
    steps: dict[int, CheckpointMarkFile | None] = {}
    local = [n for n, each in enumerate(candidates) if not isinstance(each.path, RemotePath)]
    stored = [n for n, each in enumerate(candidates) if isinstance(each.path, RemotePath)]
    for number in [*local, *stored]:
        each = candidates[number]
        step = each.claim.step
        if step is None or not marks.has_mark_for_step(step):
            continue
        passed = _find_candidate_mark(each, marks)
        if isinstance(each.path, RemotePath):
            copied = steps.get(step)
            marked[number] = (
                passed if copied is None else _make_marked_skipped_checkpoint(each, copied)
            )
            continue
        marked[number] = passed
        mark = passed.mark if passed is not None else None
        steps[step] = mark if steps.get(step, mark) is not None else None
    return [marked.get(number) for number in range(len(candidates))]


def _find_candidate_mark(
    candidate: CheckpointCandidate, marks: CheckpointMarks
) -> SkippedCheckpoint | None:
    step = candidate.claim.step
    try:
        mark = marks.find(step, read_median_write_time(candidate.path, candidate.format, step))
    except OSError as error:
        why = format_storage_error(error)
        return SkippedCheckpoint(candidate.path, why, unreadable=True, format=candidate.format)
    return None if mark is None else _make_marked_skipped_checkpoint(candidate, mark)


def _make_marked_skipped_checkpoint(
    candidate: CheckpointCandidate, mark: CheckpointMarkFile
) -> SkippedCheckpoint:
    return SkippedCheckpoint(candidate.path, mark.text, format=candidate.format, mark=mark)


def _list_tier_candidates(
    tiers: Sequence[CheckpointTier],
    nodes: int,
    world_size: int | None,
    declared: Sequence[FilePattern],
) -> tuple[list[CheckpointCandidate], list[SkippedCheckpoint], list[UnsearchedPlace]]:
    candidates: list[CheckpointCandidate] = []
    passed: list[SkippedCheckpoint] = []
    unseen: list[UnsearchedPlace] = []
    for tier in tiers:
        try:
            claiming, others = list_checkpoint_candidates(tier.place, world_size, declared)
        except FileNotFoundError as error:
            # A node's own disk begins empty: a replaced node has not even the directory.
            if not tier.local:
                unseen.append(UnsearchedPlace(str(tier.place), _describe_storage_error(error)))
            continue
        except OSError as error:
            unseen.append(UnsearchedPlace(str(tier.place), _describe_storage_error(error)))
            continue
        if tier.local and nodes > 1:
            # The program that wrote NVRx's asks all nodes: no reason to stop a job.
            others += [
                SkippedCheckpoint(
                    c.path, _OWN_DISK, claimed=c.format != nvrx.FORMAT, format=c.format
                )
                for c in claiming
            ]
            claiming = []
        candidates += claiming
        passed += others
    # A stable sort, also when reversed: of one step the nearer tier's come first.
    candidates.sort(key=_get_step_sort_key, reverse=True)
    return candidates, passed, unseen


def _get_step_sort_key(candidate: CheckpointCandidate) -> int:
    return -1 if candidate.claim.step is None else candidate.claim.step


def _describe_storage_error(error: OSError) -> str:
    return str(error.strerror or error)


def list_checkpoints(
    directory: Place,
    *,
    deep: bool = False,
    world_size: int | None = None,
    declared: Sequence[FilePattern] = (),
) -> list[CompleteCheckpoint | SkippedCheckpoint]:
    """Return all checkpoints, newest first, each proved or with its defect, and with its mark.
    Raises as last_complete."""
    candidates, passed = list_checkpoint_candidates(directory, world_size, declared)
    marked = find_candidates_excluded_by_marks(candidates, read_checkpoint_marks([directory]))
    rows: list[CompleteCheckpoint | SkippedCheckpoint] = []
    for candidate, mark in zip(candidates, marked, strict=True):
        result = verify_checkpoint_candidate(candidate, deep=deep)
        rows.append(result if mark is None else replace(result, mark=mark.mark))
    return [*rows, *passed]


def verify_checkpoint(
    path: Place, *, deep: bool = False, world_size: int | None = None
) -> CompleteCheckpoint | SkippedCheckpoint:
    """Return one checkpoint, directory or file, proved complete, or what is wrong with it. Ignores
    its mark."""
    candidate = detect_checkpoint_candidate(path, world_size)
    return (
        candidate
        if isinstance(candidate, SkippedCheckpoint)
        else verify_checkpoint_candidate(candidate, deep=deep)
    )


def verify_checkpoint_and_mark(
    path: Place, *, deep: bool = False, world_size: int | None = None
) -> CompleteCheckpoint | SkippedCheckpoint:
    """Return the same, with the mark next to it; an object in S3 has none."""
    candidate = detect_checkpoint_candidate(path, world_size)
    if isinstance(candidate, SkippedCheckpoint):
        return candidate
    row = verify_checkpoint_candidate(candidate, deep=deep)
    if isinstance(path, RemotePath):
        return row
    (mark,) = find_candidates_excluded_by_marks([candidate], read_checkpoint_marks([path.parent]))
    return row if mark is None else replace(row, mark=mark.mark)

"""docs/jobs-and-admins.md from the rows of tests/repertoire."""

from collections.abc import Iterator

from tests.repertoire.stories import Chapter, read_chapters

HEAD = """# Jobs and administrators

What hpctl does with each kind of job and each act of an administrator. Each row is a test that
runs against a real slurmctld (`tests/repertoire/`), of Slurm 22.05.8, 24.11.5 and 26.05.5. Rows
with slurmdbd do not run on 26.05.5, where Debian's slurmdbd ends at its start.
"""
COLUMNS = (
    "Job or node",
    "What happens",
    "Then, in Slurm",
    "`hpctl explain`, `hpctl status`",
    "Owner",
)


def page() -> str:
    """Return the page's text."""
    return "\n".join([HEAD, *_list_lines()])


def _list_lines() -> Iterator[str]:
    for chapter in read_chapters():
        yield from _make_section(chapter)


def _make_section(chapter: Chapter) -> Iterator[str]:
    yield f"## {chapter.title.rstrip('.').partition(':')[0]}"
    yield ""
    if ":" in chapter.title:
        rest = chapter.title.partition(":")[2].strip()
        yield rest if rest.startswith("hpctl") else f"{rest[:1].upper()}{rest[1:]}"
        yield ""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    for story in chapter.stories:
        cells = (story.job, story.act, story.slurm, story.explain, story.owner)
        yield "".join(f"| {cell} " for cell in cells) + "|"
    yield ""

"""Which nodes of a job's ExcNodeList hpctl wrote there: a mark in the job's AdminComment.

The mark is set and changed in the same update as the list, so the two agree whichever daemon, with
whichever journal, reads them later; a job's owner cannot write it. What a user excludes is never in
it: hpctl adds only nodes that the list does not have yet.
"""

import re
from collections.abc import Collection
from typing import Final

from hpctl.toolkit.hostlist import HostlistError, expand_hostlist, fold_hostlist
from hpctl.vocabulary.identity import NodeName

PREFIX: Final = "hpctl:excluded="
LONGEST: Final = 1024
"""Characters of an AdminComment that slurmctld accepts (slurmctld/job_mgr.c, _test_strlen)."""
_SEPARATOR: Final = " | "
_MARK: Final = re.compile(rf"(?:^|{re.escape(_SEPARATOR)}){re.escape(PREFIX)}(\S+)")


def parse_excluded_nodes(admin_comment: str) -> tuple[NodeName, ...]:
    """Return the nodes of the mark; none where there is no mark or it cannot be read."""
    found = _MARK.search(admin_comment)
    if found is None:
        return ()
    try:
        return tuple(map(NodeName, expand_hostlist(found[1])))
    except HostlistError:
        return ()


def format_exclusion_comment(admin_comment: str, nodes: Collection[NodeName]) -> str | None:
    """Return the AdminComment with a mark of these nodes in place of an earlier one, after what
    others wrote; without a mark for no nodes. None where slurmctld would not accept its length."""
    others = _MARK.sub("", admin_comment).removeprefix(_SEPARATOR)
    mark = PREFIX + fold_hostlist(sorted(nodes)) if nodes else ""
    text = _SEPARATOR.join(part for part in (others, mark) if part)
    return text if len(text.encode("utf-8", "surrogateescape")) <= LONGEST else None

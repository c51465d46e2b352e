"""How many RPCs a sandbox's slurmctld has served, by its own count."""

import re
from collections import Counter

from hpctl.sandbox.api import Sandbox

_ROW = re.compile(r"^\s*(?P<type>[A-Z_]+)\s+\(\s*\d+\)\s+count:(?P<count>\d+)", re.MULTILINE)
_OWN = "REQUEST_STATS_INFO"


def count_query_rpcs(sandbox: Sandbox) -> Counter[str]:
    """Return the RPCs that ask slurmctld something, by message type, since it started.

    Those of slurmd and of steps are left out, and so are sdiag's own.
    """
    text = sandbox.run(["sdiag"]).stdout
    _, _, by_type = text.partition("statistics by message type")
    by_type, _, _ = by_type.partition("statistics by user")
    found = {row["type"]: int(row["count"]) for row in _ROW.finditer(by_type)}
    return Counter({name: count for name, count in found.items() if _is_query_rpc(name)})


def _is_query_rpc(name: str) -> bool:
    if name in (_OWN, "REQUEST_PING"):
        return name != _OWN
    return name.startswith("REQUEST_") and "_INFO" in name

"""What `hpctl config check` looks at beyond the file itself: an explicit list of the rooms' checks.

Each returns the problems that it finds, or raises the one that it meets first.
"""

from collections.abc import Callable, Iterable, Sequence

from hpctl.engine.config import Config
from hpctl.service.checks import check_notification_sink_urls, check_web_page_token
from hpctl.toolkit.errors import HpctlError

CHECKS: Sequence[Callable[[Config], Iterable[HpctlError]]] = (
    check_notification_sink_urls,
    check_web_page_token,
)

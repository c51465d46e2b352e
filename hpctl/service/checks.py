"""Check that notifications can be sent and that the page can read its token."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from hpctl.engine.config import Config
from hpctl.service.notify.sinks import list_unusable_sink_errors
from hpctl.service.page.access import StatusPageAccess
from hpctl.toolkit.checks_view import CheckView
from hpctl.toolkit.errors import HpctlError


def check_notification_sink_urls(config: Config) -> Iterable[HpctlError]:
    """Return what is wrong with the sinks' URLs; nothing is sent."""
    return list_unusable_sink_errors(config.notify.sinks)


def check_web_page_token(config: Config) -> Iterable[HpctlError]:
    """Return nothing. Raises Refusal where the page's token is unusable."""
    if config.page.listen:
        StatusPageAccess.of(config.page)
    return ()


def check_notifications(config: Config, now: datetime) -> Iterator[CheckView]:  # noqa: ARG001
    """Check each sink: its URL is there, only the daemon's user reads it, and a server answers."""
    wrong = list(list_unusable_sink_errors(config.notify.sinks, reach=True))
    yield from (CheckView("notifications", "warn", str(e), e.hint) for e in wrong)
    if config.notify.sinks and not wrong:
        what = f"{len(config.notify.sinks)} sink(s) can be reached"
        yield CheckView("notifications", "ok", what, "")

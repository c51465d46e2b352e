"""`hpctl page`: the service room's page, with what other rooms explain on it."""

import secrets

import click

from hpctl.engine import config_loading
from hpctl.toolkit import output

HERE = "127.0.0.1:8472"


@click.command()
@click.option("--listen", metavar="HOST:PORT", help=f"Serve here with a separate token [{HERE}].")
@click.option("--link", is_flag=True, help="Print a link to the daemon's page, good once.")
@output.config_option
def page(listen: str | None, link: bool, config: str) -> None:
    """Serve a read-only web page of what hpctl sees and does.

    The daemon itself serves one where page.listen is set. From your own machine: `ssh -L
    8472:127.0.0.1:8472 HEAD`, then open the link. Ctrl-C ends it.
    """
    from hpctl.cli.features import make_explain_extensions
    from hpctl.service.page.access import StatusPageAccess
    from hpctl.service.page.serve import make_status_page_login_link, serve_status_page

    loaded = config_loading.load_config(config)
    if link:
        output.print_exact_text(
            make_status_page_login_link(loaded.page.listen, StatusPageAccess.of(loaded.page))
        )
        return
    by_hand = bool(listen or not loaded.page.listen)
    if by_hand:
        token = secrets.token_bytes(32)
        access = StatusPageAccess(lambda: token, loaded.page.hosts)
    else:
        access = StatusPageAccess.of(loaded.page)
    place = (listen or HERE) if by_hand else loaded.page.listen
    serve_status_page(loaded, place, access, make_explain_extensions(), by_hand=by_hand)

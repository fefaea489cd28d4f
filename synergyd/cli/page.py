"""synergyctl page: a link that signs its user in to the page, without auth/jwt."""

from __future__ import annotations

import socket

import click
from synergy_core.errors import UnavailableError, UsageError
from synergy_core.wire import munge

from synergyd.cli.shared.context import Context, pass_context


@click.command()
@pass_context
def page(context: Context) -> None:
    """Print a link that opens the page in your name. It works once, within two minutes; the session ends after 8 hours.

    munge says who you are. The page is on the host of the REST service: from another machine open a tunnel first, as the second line says.
    """
    port = context.settings.rest_port
    if not port:
        raise UsageError("page", "is not served here", "ask the cluster's admin to set RestPort")
    answer = context.rest_client().ask("POST", "/v1/page-link")[1]
    secret = answer.get("link") if isinstance(answer, dict) else None
    if not isinstance(secret, str):
        raise UnavailableError("page", "the service gave no link", "is it of an older release?")
    hosts = context.daemon_hosts() or (socket.gethostname(),)
    secret = munge.decode(secret).payload.decode("ascii", "replace")
    click.echo(f"http://localhost:{port}/page/#/login/{secret}")
    click.echo(f"from your own machine first: ssh -L {port}:localhost:{port} {hosts[0]}", err=True)

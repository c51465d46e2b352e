"""The program of the intake's process: the service room's, with the routes of other rooms."""

from collections.abc import Sequence

from starlette.routing import Route

from hpctl.jobs.report_intake import make_job_report_route as make_report_route
from hpctl.service.intake import child


def make_job_report_route(parts: child.IntakeRouteDependencies) -> Route:
    """Return the route for the reports of the supervisors inside jobs."""
    return make_report_route(
        parts.daemon.relay_job_report, parts.settings, parts.clock, parts.registry
    )


ROUTES: Sequence[child.MakeRoute] = (make_job_report_route,)


if __name__ == "__main__":
    child.main(ROUTES)

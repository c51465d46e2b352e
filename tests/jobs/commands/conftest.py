"""The fixtures of commands: a head node on paper, which `hpctl` is run against."""

from tests.fakes.command_line import account as account
from tests.fakes.command_line import head as head
from tests.fakes.command_line import history as history
from tests.fakes.command_line import planned as planned
from tests.fakes.command_line import policies as policies
from tests.fakes.command_line import sold as sold

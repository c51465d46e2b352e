"""The configuration in force: one value, which a reload replaces as a whole."""

from msgspec import Struct

from hpctl.engine.adapters import make_fault_rules
from hpctl.engine.config import Config
from hpctl.engine.run_policies import RunPolicies
from hpctl.faults.catalogue import FaultRules
from hpctl.vocabulary.policy import RecoveryPolicy


class _DerivedConfig(Struct, frozen=True):
    """A configuration with all that is derived from it."""

    config: Config
    rules: FaultRules
    policy: RecoveryPolicy
    run_policies: RunPolicies


class LiveConfig:
    """Holds the configuration in force for every part that reads it while the daemon runs.

    The properties are for any thread; `run_policies` is for the loop's thread.
    """

    def __init__(self, config: Config) -> None:
        """Raises HpctlError where the configuration names a rule that the catalogue lacks."""
        self._in_force = _derive_config(config)

    @property
    def config(self) -> Config:
        """Return the file, as it was read last."""
        return self._in_force.config

    @property
    def rules(self) -> FaultRules:
        """Return the catalogue with the overrides of the site."""
        return self._in_force.rules

    @property
    def policy(self) -> RecoveryPolicy:
        """Return the numbers that decide."""
        return self._in_force.policy

    @property
    def run_policies(self) -> RunPolicies:
        """Return the recovery policies of jobs, merged by this configuration."""
        return self._in_force.run_policies

    def replace(self, config: Config) -> None:
        """Put another configuration in force; on an error the one before stays. Raises HpctlError,
        ArithmeticError, TypeError, ValueError."""
        self._in_force = _derive_config(config)


def _derive_config(config: Config) -> _DerivedConfig:
    return _DerivedConfig(
        config=config,
        rules=make_fault_rules(config),
        policy=config.policy(),
        run_policies=RunPolicies(config.run_policy_layers),
    )

"""The configuration in force: one value, which a reload replaces as a whole."""

from msgspec import Struct

from hpctl.engine.adapters import build_fault_rules_with_overrides
from hpctl.engine.config import Config
from hpctl.engine.run_policies import RunPolicyMerger
from hpctl.faults.catalogue import FaultRules
from hpctl.vocabulary.policy import RecoveryPolicy


class _ConfigWithDerivedValues(Struct, frozen=True):
    """A configuration with all that is derived from it."""

    config: Config
    rules: FaultRules
    policy: RecoveryPolicy
    run_policies: RunPolicyMerger


class LiveConfig:
    """Holds the configuration in force for every part that reads it while the daemon runs.

    The properties are for any thread; `run_policies` is for the loop's thread.
    """

    def __init__(self, config: Config) -> None:
        """Raises HpctlError where the configuration names a rule that the catalogue lacks."""
        self._in_force = _derive_values_from_config(config)

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
    def run_policies(self) -> RunPolicyMerger:
        """Return the recovery policies of jobs, merged by this configuration."""
        return self._in_force.run_policies

    def replace(self, config: Config) -> None:
        """Put another configuration in force; on an error the one before stays. Raises HpctlError,
        ArithmeticError, TypeError, ValueError."""
        self._in_force = _derive_values_from_config(config)


def _derive_values_from_config(config: Config) -> _ConfigWithDerivedValues:
    return _ConfigWithDerivedValues(
        config=config,
        rules=build_fault_rules_with_overrides(config),
        policy=config.policy(),
        run_policies=RunPolicyMerger(config.list_run_policy_layers),
    )

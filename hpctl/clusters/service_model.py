"""SageMaker's service model, for the checks of a cluster's file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpctl.clusters.validate.facts import SageMakerServiceModel


def load_sagemaker_service_model() -> SageMakerServiceModel:
    """SageMaker's service model, from the installed botocore."""
    from hpctl.sagemaker.aws import SageMakerApiModel

    return SageMakerApiModel()

"""An MLflow model registry that follows the store: the same alias on a model version that leads to the bundle.

The store decides; the registry is told afterwards. Nothing here is imported or sent unless an address is given.
"""

import logging
import os
from typing import Any

from lengnuan.training.errors import StoreBusy, UsageError

log = logging.getLogger(__name__)

TAG = "lengnuan.bundle"

# MLflow reports its own use to its makers unless told not to, and tries a dead server for many minutes.
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


def tell_registry(server: str, model: str, alias: str, version: str, source: str) -> None:
    """Let an alias of a registered model lead to a bundle; a second time changes nothing.

    Args:
        server: MLflow's address.
        model: name of the registered model, made if missing.
        alias: its name, the same as in the store.
        version: of the bundle, kept in the tag `lengnuan.bundle` of MLflow's own version.
        source: where the bundle is.

    Raises:
        UsageError: MLflow is not installed.
        StoreBusy: it could not be told; the same command tries again.
    """
    os.environ.update(_QUIET)
    for name, value in _PATIENCE.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise UsageError('--mlflow needs MLflow: pip install "lengnuan[mlflow]"') from error
    try:
        number = _registered(MlflowClient(tracking_uri=server, registry_uri=server), model, version, source)
        MlflowClient(tracking_uri=server, registry_uri=server).set_registered_model_alias(model, alias, number)
    except MlflowException as error:
        raise StoreBusy(f"the store's alias has changed, but MLflow at {server} could not be told: {error}") from error
    log.info("MLflow: %s of the model %s is version %s, bundle %s", alias, model, number, version)


def _registered(client: Any, model: str, version: str, source: str) -> str:
    """MLflow's number for the bundle."""
    if not client.search_registered_models(f"name = '{model}'"):
        client.create_registered_model(model)
    found = client.search_model_versions(f"name = '{model}' and tags.`{TAG}` = '{version}'")
    if not found:
        return str(client.create_model_version(model, source=source, tags={TAG: version}).version)
    return str(found[0].version)

"""Checks `deploy/` against the published models of the platforms: `make deploy-tests` runs it in its own environment.

    python -m tests.deploy.check_models [--crds FILE ...]

Needs the packages of requirements.txt beside this file, and neither TensorFlow nor this package. The MPI operator
publishes no package: its pods are checked as Kubernetes', the rest only with `--crds`, the files of the operators'
releases that define their resources (CustomResourceDefinition).
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from tests.deploy.manifests import DEPLOY, load
from tests.platforms import sagemaker


def main(argv: Sequence[str] | None = None) -> int:
    """Runs all checks, prints a line for each, and returns the number of those that failed."""
    parser = argparse.ArgumentParser(description="Checks deploy/ against the published models of the platforms.")
    parser.add_argument("--crds", type=Path, nargs="*", default=[], help="files of CustomResourceDefinitions")
    flags = parser.parse_args(argv)
    num_failed = 0

    def check(what: str, problems: Callable[[], list[str]]) -> None:
        nonlocal num_failed
        found = problems()
        num_failed += bool(found)
        print(
            f"{'FAILED' if found else 'passed'}  {what}", *(f"        {line}" for line in found), sep="\n", flush=True
        )

    definitions = _schemas(flags.crds)
    for path in sorted((DEPLOY / "kubeflow").glob("*.yaml")):
        for manifest in load(path):
            name = f"kubeflow/{path.name}: {manifest['kind']}"
            check(f"{name} by the pip package", functools.partial(_by_package, manifest))
            schema = definitions.get((manifest["apiVersion"], manifest["kind"]))
            if schema is not None:
                check(f"{name} by its definition", functools.partial(_by_schema, manifest, schema))
    check("vertex/custom_job.yaml: CustomJobSpec", _vertex)
    check("sagemaker/training_job.json: CreateTrainingJob", _sagemaker_request)
    check("the variables of SageMaker's toolkit are those of the tests", _sagemaker_variables)
    return num_failed


def _by_package(manifest: Mapping[str, Any]) -> list[str]:
    """Returns the fields that the published model of a resource does not have, or its errors."""
    trainer: Any = importlib.import_module("kubeflow_trainer_api.models")

    kind = manifest["kind"]
    if kind in ("TrainJob", "TrainingRuntime"):
        return _by_model(getattr(trainer, f"TrainerV1alpha1{kind}"), manifest)
    replicas = manifest["spec"]["mpiReplicaSpecs" if kind == "MPIJob" else "tfReplicaSpecs"]
    pods = [replica["template"] for replica in replicas.values()]
    found = [line for pod in pods for line in _by_model(trainer.IoK8sApiCoreV1PodTemplateSpec, pod)]
    if kind == "TFJob":
        models: Any = importlib.import_module("kubeflow.training.models")

        known = {
            models.KubeflowOrgV1TFJobSpec.attribute_map[name] for name in models.KubeflowOrgV1TFJobSpec.openapi_types
        }
        found += [f"spec.{name}" for name in manifest["spec"] if name not in known]
        policy = models.KubeflowOrgV1RunPolicy.attribute_map.values()
        found += [f"spec.runPolicy.{name}" for name in manifest["spec"]["runPolicy"] if name not in policy]
    return found


def _by_model(model: Any, value: Mapping[str, Any]) -> list[str]:
    """Returns the paths of what a model of pydantic drops or changes; it ignores fields that it does not know."""
    try:
        taken = model.from_dict(value).to_dict()
    except ValueError as error:
        return str(error).splitlines()
    return differences(value, json.loads(json.dumps(taken, default=str)))


def differences(given: Any, taken: Any, path: str = "") -> list[str]:
    """Returns the paths below which a value differs from what a model made of it; the model may add fields."""
    if isinstance(given, Mapping):
        taken = taken if isinstance(taken, Mapping) else {}
        return [line for key, value in given.items() for line in differences(value, taken.get(key), f"{path}.{key}")]
    if isinstance(given, list):
        taken = taken if isinstance(taken, list) and len(taken) == len(given) else [None] * len(given)
        return [
            line for i, pair in enumerate(zip(given, taken, strict=True)) for line in differences(*pair, f"{path}[{i}]")
        ]
    is_number = isinstance(given, int | float) and isinstance(taken, int | float)
    return [] if str(given) == str(taken) or (is_number and given == taken) else [f"{path}: {given!r} became {taken!r}"]


def _schemas(files: Sequence[Path]) -> dict[tuple[str, str], dict[str, Any]]:
    """Returns the schemas in files of CustomResourceDefinitions, by apiVersion and kind."""
    found = {}
    for file in files:
        for definition in load(file):
            if definition["kind"] == "CustomResourceDefinition":
                spec = definition["spec"]
                for version in spec["versions"]:
                    key = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
                    found[key] = closed(version["schema"]["openAPIV3Schema"])
    return found


def closed(schema: Any) -> Any:
    """Returns a schema in which objects have no other fields than those listed, as the API server takes it."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        made.setdefault("additionalProperties", bool(schema.get("x-kubernetes-preserve-unknown-fields")))
    return made


def _by_schema(manifest: Mapping[str, Any], schema: dict[str, Any]) -> list[str]:
    jsonschema: Any = importlib.import_module("jsonschema")

    # The schema leaves the fields of metadata to Kubernetes.
    schema["properties"]["metadata"] = {"type": "object"}
    errors = jsonschema.Draft202012Validator(schema).iter_errors(manifest)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message[:200]}" for error in errors]


def _vertex() -> list[str]:
    types: Any = importlib.import_module("google.cloud.aiplatform_v1.types")
    json_format: Any = importlib.import_module("google.protobuf.json_format")
    [job] = load(DEPLOY / "vertex" / "custom_job.yaml")
    try:
        json_format.ParseDict(job, types.CustomJobSpec.pb(types.CustomJobSpec()))
    except json_format.ParseError as error:
        return [str(error)]
    return []


def _sagemaker_request() -> list[str]:
    loaders, models, validate = (
        importlib.import_module(f"botocore.{name}") for name in ("loaders", "model", "validate")
    )
    model = models.ServiceModel(loaders.Loader().load_service_model("sagemaker", "service-2"))
    request = json.loads((DEPLOY / "sagemaker" / "training_job.json").read_text())
    report = validate.ParamValidator().validate(request, model.operation_model("CreateTrainingJob").input_shape)
    return report.generate_report().splitlines() if report.has_errors() else []


def _sagemaker_variables() -> list[str]:
    """Returns what differs between `tests.platforms.sagemaker` and what the toolkit makes of the same job."""
    with tempfile.TemporaryDirectory() as base, mock.patch.dict(os.environ, {"SAGEMAKER_BASE_DIR": base}):
        # It reads the variable, and makes the folders, when it is imported.
        environment: Any = importlib.import_module("sagemaker_training.environment")
        ours = sagemaker(("algo-1", "algo-2"), "algo-2")
        made = environment.Environment(
            resource_config=json.loads(ours["SM_RESOURCE_CONFIG"]),
            input_data_config={"training": {"TrainingInputMode": "File"}},
            hyperparameters={"epochs": 4},
        ).to_env_vars()
        theirs = {name: value.replace(base, "/opt/ml") for name, value in made.items()}
    changed = [name for name, value in ours.items() if theirs.get(name) != value]
    return [f"{name}: {ours[name]!r}, by the toolkit {theirs.get(name)!r}" for name in changed]


if __name__ == "__main__":
    sys.exit(main())

"""The doctor names installed packages that do not fit together."""

import sys
from importlib.metadata import version

import pytest

from strategies import _horovod_recipe
from strategies._horovod_recipe import local_version
from strategies.doctoring import software
from strategies.doctoring.report import Report
from strategies.doctoring.software import check_horovod, check_versions
from strategies.versions import TESTED


def test_a_horovod_of_another_tensorflow_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"horovod": "0.28.1+tf2.22.0.gloo.r01234567", "tensorflow": "2.22.0rc1"}
    monkeypatch.setattr(software, "installed_version", versions.get)
    monkeypatch.setattr(_horovod_recipe, "installed_version", versions.get)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    report = Report(as_json=True)
    check_horovod(report)
    [problem] = report.found["problems"]
    assert "was built for another TensorFlow" in problem
    assert problem.endswith("python -m strategies.install_horovod")


@pytest.mark.parametrize("tensorflow", ["2.22.0", "2.22.0rc1", "2.21.0+nv25.3"])
def test_a_horovod_of_this_tensorflow_is_none(tensorflow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"horovod": f"0.28.1+{local_version(tensorflow, 'gloo')}", "tensorflow": tensorflow}
    monkeypatch.setattr(software, "installed_version", versions.get)
    monkeypatch.setattr(_horovod_recipe, "installed_version", versions.get)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    report = Report(as_json=True)
    check_horovod(report)
    assert "does not work here" in report.found["problems"][0]


def test_a_horovod_that_cannot_be_imported_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "installed_version", lambda name: "0.28.1")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    report = Report(as_json=True)
    check_horovod(report)
    assert report.found["problems"][0].startswith("Horovod 0.28.1 does not work here: exit code 1.")


def test_without_horovod_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "installed_version", lambda name: None)
    report = Report(as_json=True)
    check_horovod(report)
    assert report.found["horovod"] == {"installed": False, "to install": "python -m strategies.install_horovod"}
    assert report.close() == 0


def test_other_releases_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TESTED, "tensorflow", ("2.2", "2.3"))
    report = Report(as_json=True)
    check_versions(report)
    assert f"tensorflow {version('tensorflow')}" in report.found["problems"][0]
    assert "pip install 'tensorflow>=2.2,<2.3'" in report.found["problems"][0]


def test_keras_and_its_nightly_build_together_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"keras": "3.15.1", "keras-nightly": "3.16.0.dev2026102704"}
    monkeypatch.setattr(software, "installed_version", versions.get)
    report = Report(as_json=True)
    check_versions(report)
    [problem] = report.found["problems"]
    assert problem.startswith("The packages keras and keras-nightly are both installed")

"""The files in deploy/ are valid, harden what they start, and fit evsched's own commands, settings and pages."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from packaging.requirements import Requirement

from evsched import environment
from evsched.api.endpoints import OPERATIONS
from evsched.cli.commands import build
from evsched.config import SETTINGS, Config

ROOT: Final = Path(__file__).parents[2]
KUBERNETES: Final = ROOT / "deploy/kubernetes"
SYSTEMD: Final = ROOT / "deploy/systemd"
FORCE: Final = 10.0
"""Seconds that a process may take to end after its shutdown grace: see docs/deploy.md."""


def check_command(words: Sequence[str], variables: Mapping[str, str]) -> Config:
    """Parse a command line with the settings in its environment; return them all. An unknown one is an error."""
    assert environment.warning(variables) is None
    _, bound, ignored = build([*words[:1]]).parse_args(words, exit_on_error=False, print_error=False)
    assert ignored == {} or set(ignored) <= {"config"}
    flags = {name: value for name, value in bound.arguments.items() if name in SETTINGS and value is not None}
    return environment.load(variables, **flags)


def test_wrong_commands_and_settings_are_noticed() -> None:
    check_command(["worker", "tasks:app", "--metrics-port", "1"], {"EVSCHED_LOG_LEVEL": "info"})
    for words, variables in (
        (["worker", "tasks:app", "--metric-port", "1"], {}),
        (["worker"], {}),
        (["workers", "tasks:app"], {}),
        (["dispatcher", "--metrics-port", "70000"], {}),
        (["dispatcher"], {"EVSCHED_LOGLEVEL": "info"}),
        (["dispatcher"], {"EVSCHED_METRICS_PORT": "x"}),
    ):
        with pytest.raises(Exception, match=r"."):
            check_command(words, variables)


# Kubernetes.


def read(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def built(folder: Path) -> list[dict[str, Any]]:
    """Return the objects of a kustomization as kustomize builds them, and check that it lists every file beside it."""
    (kustomization,) = read(folder / "kustomization.yaml")
    listed = [folder / name for name in kustomization["resources"]]
    others = {path for path in folder.glob("*.yaml") if path.name != "kustomization.yaml"}
    assert others == {path for path in listed if path.is_file()}
    objects = [one for path in listed for one in (read(path) if path.is_file() else built(path))]
    for one in objects:
        one["metadata"]["namespace"] = kustomization["namespace"]
    for patch in kustomization.get("patches", []):
        for change in yaml.safe_load(patch["patch"]):
            inner, key = field(found(objects, **patch["target"]), change["path"].strip("/").split("/"))
            if change["op"] == "remove":
                del inner[key]
            else:
                inner.insert(key, change["value"])
    images = {one["name"]: f"{one['newName']}:{one['newTag']}" for one in kustomization.get("images", [])}
    for one in objects:
        if one["kind"] == "Deployment":
            container = one["spec"]["template"]["spec"]["containers"][0]
            container["image"] = images.get(container["image"], container["image"])
    for copy in kustomization.get("replacements", []):
        path = copy["source"].pop("fieldPath")
        source, name = field(found(objects, **copy["source"]), path.split("."))
        for target in copy["targets"]:
            for path in target["fieldPaths"]:
                inner, key = field(found(objects, **target["select"]), path.split("."))
                inner[key] = source[name]
    return objects


def found(objects: list[dict[str, Any]], kind: str, name: str | None = None) -> dict[str, Any]:
    (one,) = [one for one in objects if one["kind"] == kind and name in (None, one["metadata"]["name"])]
    return one


def field(inner: Any, path: list[str]) -> tuple[Any, Any]:
    """Return the object or list that has a field, and the field's key in it."""
    for word in path[:-1]:
        inner = inner[int(word) if isinstance(inner, list) else word]
    return inner, int(path[-1]) if isinstance(inner, list) else path[-1]


def test_kustomize_builds_the_same() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    command = ["kubectl", "kustomize", str(KUBERNETES / "keda")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    def ordered(objects: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(objects, key=lambda one: (one["kind"], one["metadata"]["name"]))

    assert ordered(yaml.safe_load_all(done.stdout)) == ordered(built(KUBERNETES / "keda"))


def test_bursts_have_the_image_and_the_app_of_the_workers(tmp_path: Path) -> None:
    shutil.copytree(KUBERNETES, tmp_path, dirs_exist_ok=True)
    for name, old, new in (("kustomization", "newName: evsched", "newName: shop"), ("worker", "tasks:app", "shop:app")):
        path = tmp_path / f"base/{name}.yaml"
        path.write_text(path.read_text().replace(old, new))
    objects = built(tmp_path / "keda")
    worker = found(objects, "Deployment", "evsched-worker")["spec"]["template"]
    burst = found(objects, "ScaledJob")["spec"]["jobTargetRef"]["template"]
    for pod in (worker, burst):
        (container,) = pod["spec"]["containers"]
        assert (container["image"], container["args"][:2]) == ("shop:latest", ["worker", "shop:app"])


ALL: Final = built(KUBERNETES / "keda")
MODELS: Final = {"Deployment": "V1Deployment", "Service": "V1Service", "PodDisruptionBudget": "V1PodDisruptionBudget"}


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [one for one in ALL if one["kind"] == kind]


@pytest.fixture(scope="module")
def kubernetes() -> Any:
    return pytest.importorskip("kubernetes.client")


def check_model(kubernetes: Any, model: str, given: Any) -> None:
    """Compare an object with what Kubernetes' own types make of it: they drop fields that do not exist."""
    found = getattr(kubernetes, model).from_dict(given)
    assert kubernetes.ApiClient().sanitize_for_serialization(found) == given


def test_objects_have_the_fields_of_kubernetes(kubernetes: Any) -> None:
    for kind, model in MODELS.items():
        assert of_kind(kind)
        for one in of_kind(kind):
            check_model(kubernetes, model, one)
    for one in of_kind("ScaledJob"):
        check_model(kubernetes, "V1JobSpec", one["spec"]["jobTargetRef"])
    assert {one["kind"] for one in ALL} == {*MODELS, "ScaledObject", "ScaledJob", "TriggerAuthentication"}
    versions = {"Deployment": "apps/v1", "Service": "v1", "PodDisruptionBudget": "policy/v1"}
    assert all(one["apiVersion"] == versions.get(one["kind"], "keda.sh/v1alpha1") for one in ALL)


def test_wrong_objects_are_noticed(kubernetes: Any) -> None:
    worker = next(one for one in of_kind("Deployment") if "worker" in one["metadata"]["name"])
    check_model(kubernetes, "V1Deployment", worker)
    unknown, missing, misplaced = deepcopy(worker), deepcopy(worker), deepcopy(worker)
    unknown["spec"]["template"]["spec"]["containers"][0]["readyProbe"] = {}
    del missing["spec"]["selector"]
    misplaced["spec"]["template"]["spec"]["readOnlyRootFilesystem"] = True
    for wrong in (unknown, missing, misplaced):
        with pytest.raises((AssertionError, ValueError)):
            check_model(kubernetes, "V1Deployment", wrong)


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the templates of all pods, by name."""
    for one in of_kind("Deployment"):
        yield one["metadata"]["name"], one["spec"]["template"]
    for one in of_kind("ScaledJob"):
        yield one["metadata"]["name"], one["spec"]["jobTargetRef"]["template"]


def settings_of(container: Mapping[str, Any]) -> Config:
    """Return the settings of a container, whose secrets have some value."""
    secret = {"EVSCHED_URL": "redis://redis:6379/0"}
    values = {one["name"]: one.get("value", secret.get(one["name"], "x" * 32)) for one in container["env"]}
    return check_command(container["args"], values)


@pytest.mark.parametrize("name", [name for name, _ in pods()])
def test_pod_runs_a_command_of_evsched_without_rights(name: str) -> None:
    spec = dict(pods())[name]["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert f"USER {spec['securityContext']['runAsUser']}:" in (ROOT / "deploy/Containerfile").read_text()
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is spec["enableServiceLinks"] is False
    assert [one["mountPath"] for one in container["volumeMounts"]] == ["/tmp"]
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "memory" in container["resources"]["limits"]
    config = settings_of(container)
    drain = config.shutdown_grace if container["args"][0] == "worker" else 0.0
    pause = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert spec["terminationGracePeriodSeconds"] > pause + drain + FORCE, "else it is killed while it drains"


@pytest.mark.parametrize("deployment", of_kind("Deployment"), ids=lambda one: one["metadata"]["name"])
def test_probes_ask_for_pages_that_exist(deployment: dict[str, Any]) -> None:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    config, service = settings_of(container), container["args"][0]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports["metrics"] == config.metrics_port
    assert config.metrics_host == "0.0.0.0"
    if "http" in ports:
        assert (getattr(config, f"{service}_host"), getattr(config, f"{service}_port")) == ("0.0.0.0", ports["http"])
    pages = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    for probe, page in pages.items():
        asked = container[probe]["httpGet"]
        assert asked["path"] == page
        assert asked["port"] == "metrics" or (asked["port"], service) == ("http", "api"), "who else has these pages"


def test_selectors_find_the_pods() -> None:
    labels = {one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"] for one in of_kind("Deployment")}
    assert all(
        one["spec"]["selector"]["matchLabels"] == labels[one["metadata"]["name"]] for one in of_kind("Deployment")
    )
    budgets = {
        one["metadata"]["name"]: one["spec"]["selector"]["matchLabels"] for one in of_kind("PodDisruptionBudget")
    }
    assert budgets == labels
    for one in of_kind("Service"):
        assert one["spec"]["selector"] == labels[one["metadata"]["name"]]
        assert [port["targetPort"] for port in one["spec"]["ports"]] == ["http"]
    for one in of_kind("ScaledJob"):
        assert one["spec"]["jobTargetRef"]["template"]["metadata"]["labels"] not in labels.values(), "another component"


def test_images_and_secrets_are_named_in_the_docs() -> None:
    (base,) = read(KUBERNETES / "base/kustomization.yaml")
    files = "".join(path.read_text() for path in KUBERNETES.rglob("*.yaml"))
    assert set(re.findall(r"image: ([\w-]+)", files)) == {one["name"] for one in base["images"]}
    used = re.findall(r"(?:name: evsched, )key: ([\w-]+)", files)
    told = re.findall(r"--from-literal=([\w-]+)=", (ROOT / "docs/kubernetes.md").read_text())
    assert set(used) == set(told)


TRIGGER: Final = {"type", "metricType", "metadata", "authenticationRef", "name", "useCachedMetrics"}
FIELDS: Final = {
    "ScaledObject": {
        "scaleTargetRef",
        "pollingInterval",
        "cooldownPeriod",
        "initialCooldownPeriod",
        "idleReplicaCount",
        "minReplicaCount",
        "maxReplicaCount",
        "fallback",
        "advanced",
        "triggers",
    },
    "ScaledJob": {
        "jobTargetRef",
        "pollingInterval",
        "minReplicaCount",
        "maxReplicaCount",
        "successfulJobsHistoryLimit",
        "failedJobsHistoryLimit",
        "envSourceContainerName",
        "rollout",
        "scalingStrategy",
        "triggers",
    },
    "TriggerAuthentication": {"secretTargetRef", "env", "podIdentity"},
}
"""Fields of `spec`, from KEDA's documentation: it has no types for Python."""


def test_objects_of_keda_have_its_fields() -> None:
    for kind, fields in FIELDS.items():
        (one,) = of_kind(kind)
        assert one.keys() == {"apiVersion", "kind", "metadata", "spec"}
        assert one["spec"].keys() <= fields
    (known,) = of_kind("TriggerAuthentication")
    (secret,) = known["spec"]["secretTargetRef"]
    assert secret == {"parameter": "token", "name": "evsched", "key": "api-read-token"}


@pytest.mark.parametrize("kind", ["ScaledObject", "ScaledJob"])
def test_keda_asks_the_api_for_the_jobs_of_the_workers_that_it_scales(kind: str) -> None:
    (one,) = of_kind(kind)
    (trigger,) = one["spec"]["triggers"]
    metadata: dict[str, str] = trigger["metadata"]
    url = urlsplit(metadata["url"])
    assert trigger.keys() <= TRIGGER
    assert trigger["type"] == "metrics-api"
    assert all(type(value) is str for value in metadata.values()), "KEDA takes texts only"
    assert (metadata["valueLocation"], metadata["authMode"]) == ("jobs", "bearer")
    assert trigger["authenticationRef"] == {"name": of_kind("TriggerAuthentication")[0]["metadata"]["name"]}
    (base,) = read(KUBERNETES / "base/kustomization.yaml")
    service = next(found for found in of_kind("Service") if found["metadata"]["name"] == "evsched-api")
    assert url.netloc == f"{service['metadata']['name']}.{base['namespace']}.svc"
    assert service["spec"]["ports"][0]["port"] == 80
    (operation,) = [found for found in OPERATIONS if found.path.endswith("/scale")]
    assert re.fullmatch(operation.path.replace("{queue}", r"[\w-]+"), url.path)
    lead = int(parse_qs(url.query).get("lead", ["0"])[0])
    if kind == "ScaledObject":
        target = one["spec"]["scaleTargetRef"]["name"]
        pod = next(pod for name, pod in pods() if name == target)
        assert lead > 2 * one["spec"]["pollingInterval"], "a pod has some time to start"
        assert "replicas" not in found(ALL, "Deployment", target)["spec"], "KEDA says how many there are"
    else:
        pod = one["spec"]["jobTargetRef"]["template"]
        assert lead == 0, "a burst that finds nothing due ends at once"
    config = settings_of(pod["spec"]["containers"][0])
    assert metadata["targetValue"] == str(config.concurrency)
    assert config.queues == (url.path.split("/")[3],), "KEDA may end it while it runs a job that it does not see"


# The image.


def copied_files() -> set[str]:
    """Return the files and folders of the checkout that the image is built from."""
    lines = re.findall(r"^COPY (?!--)(.+) \S+$", (ROOT / "deploy/Containerfile").read_text(), re.M)
    return {word for line in lines for word in line.split()}


def test_containerfile_copies_the_sources_of_the_package_and_names_extras_that_exist() -> None:
    text = (ROOT / "deploy/Containerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = copied_files()
    assert all((ROOT / name).exists() for name in copied)
    needed = {*wheel["packages"], *(name.partition("/")[0] for name in wheel["force-include"])}
    needed |= {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    needed |= {hook.get("path", "hatch_build.py") for hook in wheel["hooks"].values()}
    assert needed <= copied
    extras = re.findall(r"'\.\[([\w,]+)\]'", text)
    assert set(extras[0].split(",")) <= set(project["project"]["optional-dependencies"])
    (sed,) = re.findall(r"RUN (sed .+ requirements\.lock) > constraints\.txt", text)
    lines = subprocess.run(shlex.split(sed), cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    pinned = [Requirement(line) for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert {"redis", "starlette"} <= {one.name for one in pinned}
    assert all(str(one.specifier).startswith("==") for one in pinned)


def test_compose_starts_evsched_without_a_shell_and_lets_it_end() -> None:
    (compose,) = read(ROOT / "grafana/compose.yml")
    services = [one for one in compose["services"].values() if one["image"] == compose["x-evsched"]["image"]]
    assert {one["command"][0] for one in services} == {"dispatcher", "doctor", "worker"}
    for one in services:
        config = check_command(one["command"], one["environment"])
        assert float(one["stop_grace_period"].removesuffix("s")) > config.shutdown_grace + FORCE + 1
        build, app = one["build"], one["volumes"][0].split(":")
        assert (ROOT / "grafana" / build["context"] / build["dockerfile"]).is_file()
        assert (ROOT / "grafana" / app[0] / "tasks.py").is_file()
        assert f"WORKDIR {app[1]}\n" in (ROOT / build["dockerfile"]).read_text()


# systemd.

UNITS: Final = sorted(SYSTEMD.glob("*.service"))


def values(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text(), re.M)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_unit_starts_a_command_of_evsched_and_lets_it_end(unit: Path) -> None:
    assert values(unit, "User") == ["evsched"]
    assert values(unit, "Type") == ["exec"]
    (command,) = values(unit, "ExecStart")
    program, *words = shlex.split(command.replace("%i", "tasks"))
    if program == "/usr/bin/redis-server":
        return
    assert program == "/opt/evsched/.venv/bin/evsched"
    given = dict(one.split("=", 1) for one in values(unit, "Environment"))
    config = check_command(words, given)
    (patience,) = values(unit, "TimeoutStopSec")
    assert float(patience) > config.shutdown_grace + FORCE + 1, "with --processes, a second more"
    if words[0] != "doctor":  # its flag is no setting
        assert config.metrics_port is not None


def test_each_service_has_a_unit() -> None:
    commands = {tuple(shlex.split(values(unit, "ExecStart")[0])[1:3]) for unit in UNITS}
    first = {words[0] for words in commands}
    assert {"dispatcher", "worker", "api", "console", "doctor"} <= first
    assert {("ledger", "run"), ("ledger", "history")} <= commands
    ports = [port for unit in UNITS for port in re.findall(r"(?:--metrics-port |METRICS_PORT=)(\d+)", unit.read_text())]
    assert len(ports) == len(set(ports)) == len(UNITS) - 1, "they may all run on one host; Redis has none"


@pytest.fixture
def installed(tmp_path: Path) -> Generator[list[str]]:
    """The names of the units, in a folder in which their programs exist; skips without systemd."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed (Debian: systemd)")
    shutil.copytree(SYSTEMD, tmp_path, dirs_exist_ok=True)
    for unit in [*tmp_path.glob("*.service")]:
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.M)
        unit.unlink()
        (tmp_path / unit.name.replace("@", "@tasks")).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        yield [f"./{unit.name}" for unit in tmp_path.glob("*.service")]


def test_systemd_accepts_the_units(installed: list[str]) -> None:
    done = subprocess.run(["systemd-analyze", "verify", *installed], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    Path("evsched-.service.d/hardening.conf").write_text("[Service]\nNoNewPrivilege=yes\n")
    done = subprocess.run(["systemd-analyze", "verify", installed[0]], capture_output=True, text=True, check=False)
    assert "Unknown key" in done.stderr, "the file for all units is read too"


def test_units_are_as_exposed_as_the_docs_say(installed: list[str]) -> None:
    told = re.findall(r"exposure level is (\d\.\d)", (ROOT / "docs/systemd.md").read_text())
    assert len(told) == 1
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={float(told[0]) * 10:.0f}"]
    for unit in installed:
        assert subprocess.run([*command, unit], capture_output=True, check=False).returncode == 0, unit
    shutil.rmtree("evsched-.service.d")
    assert subprocess.run([*command, installed[0]], capture_output=True, check=False).returncode != 0

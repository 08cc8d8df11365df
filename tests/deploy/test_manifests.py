"""deploy/ as far as it can be checked without a cluster: schemas, secrets, sizes, commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from qsearch.cli.main import parse
from tests.each import each

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
POD_TEMPLATES = ("Deployment", "StatefulSet")


@cache
def manifest() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text()))


def ray_job() -> dict[str, Any]:
    (job,) = (item for item in manifest() if item["kind"] == "RayJob")
    return job


def pod_specs(items: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every pod that the manifests start, by the name of what starts it."""
    found = {}
    for item in items:
        name = f"{item['kind']}/{item['metadata']['name']}"
        if item["kind"] == "Pod":
            found[name] = item
        elif item["kind"] in POD_TEMPLATES:
            found[name] = item["spec"]["template"]
        elif item["kind"] == "RayJob":
            cluster = item["spec"]["rayClusterSpec"]
            found[f"{name}/submitter"] = item["spec"]["submitterPodTemplate"]
            found[f"{name}/head"] = cluster["headGroupSpec"]["template"]
            for group in cluster["workerGroupSpecs"]:
                found[f"{name}/{group['groupName']}"] = group["template"]
    return found


@cache
def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def launch_words(command: str) -> list[str]:
    """The words after `qsearch` in a command line, with compose's variables at their defaults."""
    line = re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", command)
    line = re.sub(r"\$\{[A-Z_]+:\?[^}]*\}", "value", line)
    return shlex.split(line[line.index("qsearch ") :])[1:]


def test_the_compose_file_obeys_the_compose_specification() -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*check, DEPLOY / "compose.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_publishes_ports_on_this_machine_only() -> None:
    published = [port for s in compose()["services"].values() for port in s.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_compose_holds_no_secret_and_the_example_names_each_variable() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    used = set(re.findall(r"\$\{([A-Z_]+)", text))
    example = (DEPLOY / "compose.env.example").read_text()
    named = dict(re.findall(r"^([A-Z_]+)=(.*)$", example, re.MULTILINE))
    assert used - {"QSEARCH_IMAGE", "POSTGRES_IMAGE"} == set(named)
    assert all(not named[name] for name in named if name.endswith(("TOKEN", "PASSWORD")))


def test_everything_that_serves_comes_back_after_a_crash() -> None:
    policies = {name: s["restart"] for name, s in compose()["services"].items()}
    assert policies.pop("job") == "on-failure:5"
    assert set(policies.values()) == {"unless-stopped"}


def test_the_manifest_obeys_the_schemas_of_kubernetes(tmp_path: Path) -> None:
    items = manifest()
    # KubeRay's own kinds have no schema in the release: their pods are checked as pods.
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": pod["spec"]}
        for pod in pod_specs(items).values()
    ]
    file = tmp_path / "rendered.yaml"
    file.write_text(
        yaml.safe_dump_all([*(i for i in items if not i["apiVersion"].startswith("ray.io")), *pods])
    )
    done = subprocess.run(
        [sys.executable, "-m", "kubernetes_validate", "--strict", str(file)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARN" not in done.stdout + done.stderr


def test_every_pod_is_bounded_and_without_privileges() -> None:
    for name, pod in each(pod_specs(manifest()).items()):
        assert pod["spec"]["securityContext"]["runAsNonRoot"], name
        for container in each(pod["spec"]["containers"]):
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
            assert "memory" in container["resources"]["limits"], name
            assert container["securityContext"]["capabilities"]["drop"] == ["ALL"], name
            assert container["securityContext"]["readOnlyRootFilesystem"], name
            assert not container["securityContext"]["allowPrivilegeEscalation"], name
            mounts = {mount["name"] for mount in container.get("volumeMounts", ())}
            claims = item_claims(manifest())
            assert mounts <= {v["name"] for v in pod["spec"].get("volumes", ())} | claims, name
            for variable in container.get("env", ()):
                secret = any(word in variable["name"] for word in ("TOKEN", "PASSWORD", "STORAGE"))
                assert not (secret and "value" in variable), f"{name}: {variable['name']}"


def item_claims(items: list[dict[str, Any]]) -> set[str]:
    """Volumes that stateful sets claim themselves."""
    sets = [item for item in items if item["kind"] == "StatefulSet"]
    return {claim["metadata"]["name"] for s in sets for claim in s["spec"]["volumeClaimTemplates"]}


def test_what_ray_writes_to_is_writable() -> None:
    pods = pod_specs(manifest()).items()
    for name, pod in each((name, pod) for name, pod in pods if name.startswith("RayJob")):
        (container,) = pod["spec"]["containers"]
        writable = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
        assert {"/tmp", "/home/qsearch"} <= writable, name


def test_nothing_goes_out_that_no_policy_names() -> None:
    policies = {
        i["metadata"]["name"]: i["spec"] for i in manifest() if i["kind"] == "NetworkPolicy"
    }
    everything = policies["deny-all"]
    assert (everything["podSelector"], everything["policyTypes"]) == ({}, ["Ingress", "Egress"])
    assert "ingress" not in everything
    assert "egress" not in everything
    for name in ("ray", "postgres", "dashboard"):
        assert "Egress" in policies[name]["policyTypes"], name
        assert all("to" in rule for rule in policies[name]["egress"]), name


def test_compose_services_have_read_only_roots_and_no_capabilities() -> None:
    for name, service in each(compose()["services"].items()):
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert any(place.startswith("/tmp") for place in service["tmpfs"]), name


def test_the_database_is_ready_only_when_it_can_be_connected_to() -> None:
    (database,) = (item for item in manifest() if item["kind"] == "StatefulSet")
    (container,) = database["spec"]["template"]["spec"]["containers"]
    asked = [container[probe]["exec"]["command"] for probe in ("readinessProbe", "livenessProbe")]
    # The image answers on its socket, and only there, while it is still making the database.
    for command in (*asked, compose()["services"]["postgres"]["healthcheck"]["test"][1:]):
        assert command[command.index("-h") + 1] == "127.0.0.1"


def test_the_files_that_the_readme_applies_are_there() -> None:
    named = re.findall(r"(?<![\w/])deploy/[\w./-]+", (DEPLOY / "README.md").read_text())
    made = {"deploy/.env"}  # by the reader
    assert "deploy/kuberay.yaml" in named
    assert not [path for path in set(named) - made if not (DEPLOY.parent / path).exists()]


def test_ray_job_is_what_the_operator_reads() -> None:
    job = ray_job()
    spec, cluster = job["spec"], job["spec"]["rayClusterSpec"]
    assert spec["shutdownAfterJobFinishes"] is True
    assert spec["backoffLimit"] > 0
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    containers = [pod["spec"]["containers"][0] for pod in pod_specs([job]).values()]
    assert [c["name"] for c in containers] == ["ray-job-submitter", "ray-head", "ray-worker"]
    assert all(":" in container["image"] for container in containers)
    # The sidecar that the operator adds must pass the restricted standard as well.
    assert cluster["autoscalerOptions"]["securityContext"]["capabilities"]["drop"] == ["ALL"]
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        (worker,) = group["template"]["spec"]["containers"]
        # The autoscaler counts limits; a pod with less asked than allowed would be overcommitted.
        assert worker["resources"]["requests"] == worker["resources"]["limits"]


def test_only_rays_own_pods_reach_ray() -> None:
    policies = {i["metadata"]["name"]: i for i in manifest() if i["kind"] == "NetworkPolicy"}
    labels = {"app.kubernetes.io/name": "qsearch-ray"}
    ray = policies["ray"]["spec"]
    assert ray["podSelector"]["matchLabels"] == labels
    unbounded = [rule for rule in ray["ingress"] if "from" not in rule]
    assert not unbounded
    pods = pod_specs(manifest())
    templates = [pod for name, pod in pods.items() if name.startswith("RayJob")]
    assert all(labels.items() <= pod["metadata"]["labels"].items() for pod in templates)


def test_a_search_finds_room_for_the_workers_it_asks_for() -> None:
    job = ray_job()
    words = launch_words(job["spec"]["entrypoint"])
    asked = int(parse(words).params["workers"])
    groups = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    cpus = [g["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] for g in groups]
    assert asked <= sum(g["replicas"] * int(cpu) for g, cpu in zip(groups, cpus))


def test_every_node_that_reads_samples_has_them() -> None:
    mounted = {
        name: {
            re.split(r":(?=/)", volume)[-1].removesuffix(":ro")
            for volume in service.get("volumes", ())
        }
        for name, service in compose()["services"].items()
    }
    assert {"/calib", "/eval"} <= mounted["worker"] & mounted["job"]
    job = ray_job()
    for name, pod in pod_specs([job]).items():
        paths = {m["mountPath"] for m in pod["spec"]["containers"][0].get("volumeMounts", ())}
        assert "/data" in paths or name.endswith("submitter")


def launch_commands() -> dict[str, str]:
    services = compose()["services"]
    (web,) = (item for item in manifest() if item["kind"] == "Deployment")
    return {
        "compose job": services["job"]["command"][-1],
        "compose dashboard": services["dashboard"]["command"],
        "compose server": services["server"]["command"][-1],
        "search": ray_job()["spec"]["entrypoint"],
        "dashboard": shlex.join(web["spec"]["template"]["spec"]["containers"][0]["command"]),
    }


@pytest.mark.parametrize("where", sorted(launch_commands()))
def test_commands_in_the_manifests_are_commands_of_qsearch(where: str) -> None:
    words = launch_words(launch_commands()[where])
    assert parse(words).info_name in ("launch", "dashboard", "serve")


def test_the_image_runs_as_nobody_special_and_holds_every_role() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    last = text[text.rindex("FROM ") :]
    assert re.search(r"^USER 1000$", last, re.MULTILINE)
    assert "ray[default]" in last
    assert not re.search(r"(TOKEN|PASSWORD)=", text)

"""What deploy/ ships: read as Kubernetes reads it, started with what it says, and alike."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from ratelimit_service.settings.environment import from_environment
from tests.cli.inside import Printed, inside
from tests.conftest import need
from tests.e2e.conftest import need_envoy
from tests.servers.envoy import COMMAND as ENVOY
from tests.servers.envoy import http_manager, ratelimit_filter, shipped_config
from tests.servers.service import ServiceProcess

TOP = Path(__file__).parents[2]
DEPLOY = TOP / "deploy"
CHART = DEPLOY / "helm" / "ratelimit-service"
VALIDATE = str(TOP / ".tools" / "validate")

Object = dict[str, Any]
"""A Kubernetes object; its types are checked by the program that reads it."""

EVERYTHING = {
    "tls": {"secretName": "ratelimit-tls", "clientSan": "envoy.example"},
    "serviceMonitor": {"enabled": True},
    "podMonitor": {"enabled": True},
    "image": {"digest": "sha256:" + "0" * 64},
    "env": [{"name": "RATELIMIT_LOG_LEVEL", "value": "debug"}],
    "resources": {"requests": {"cpu": "1500m"}},
    "tolerations": [{"key": "edge", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "podLabels": {"team": "edge"},
    "podAnnotations": {"note": "edge"},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "imagePullSecrets": [{"name": "registry"}],
    "serviceAccount": {"create": True, "annotations": {"role": "edge"}},
    "networkPolicy": {"egress": [{"ports": [{"port": 8125, "protocol": "UDP"}]}]},
    "extraVolumes": [{"name": "token", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "token", "mountPath": "/run/token"}],
}
OUTSIDE = {"redis": {"enabled": False}, "store": {"secretName": "ratelimit-store"}}

OF_SERVICE = {
    "ConfigMap",
    "Deployment",
    "HorizontalPodAutoscaler",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "Service",
}


def validated(*words: str) -> subprocess.CompletedProcess[str]:
    need(VALIDATE, "install Go")
    return subprocess.run([VALIDATE, *words], capture_output=True, text=True, check=False)


def kustomized(name: str) -> list[Object]:
    done = validated("kustomize", str(DEPLOY / "kustomize" / name))
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def charted(directory: Path, values: Object) -> list[Object]:
    done = chart(directory, values)
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def chart(directory: Path, values: Object, what: str = "helm") -> subprocess.CompletedProcess[str]:
    file = directory / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    return validated(what, str(CHART), str(file), "edge", "ratelimit")


def objects(text: str) -> list[Object]:
    return [each for each in yaml.safe_load_all(text) if each]


def only(found: list[Object], kind: str, component: str = "service") -> Object:
    (one,) = [
        each
        for each in found
        if each["kind"] == kind
        and each["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
        == component
    ]
    return one


def container(found: list[Object]) -> Object:
    (one,) = only(found, "Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(one)


class Given:
    """What a kubelet would make of a Deployment's environment and volumes, in a directory."""

    def __init__(self, directory: Path, found: list[Object]) -> None:
        self._directory = directory
        self._found = found
        self._pod = only(found, "Deployment")["spec"]["template"]["spec"]
        self._container = container(found)
        self.environment = {each["name"]: self._value(each) for each in self._container["env"]}
        for mount in self._container["volumeMounts"]:
            place = directory / mount["name"]
            self._fill(place, mount["name"])
            for name, value in self.environment.items():
                if value.startswith(mount["mountPath"]):
                    self.environment[name] = f"{place}{value.removeprefix(mount['mountPath'])}"

    def _value(self, each: Object) -> str:
        if "value" in each:
            return str(each["value"])
        source = each["valueFrom"]
        if "resourceFieldRef" in source:
            assert source["resourceFieldRef"]["resource"] == "requests.cpu"
            cpu = self._container["resources"]["requests"]["cpu"]
            return str(math.ceil(int(cpu[:-1]) / 1_000) if cpu.endswith("m") else int(cpu))
        assert source["secretKeyRef"] == {"name": "ratelimit-store", "key": "url"}
        return "rediss://user:secret@redis.example:6380/1"

    def _fill(self, place: Path, name: str) -> None:
        place.mkdir()
        (volume,) = [each for each in self._pod["volumes"] if each["name"] == name]
        if "configMap" in volume:
            (data,) = [
                each["data"]
                for each in self._found
                if each["kind"] == "ConfigMap"
                and each["metadata"]["name"] == volume["configMap"]["name"]
            ]
            for file, text in data.items():
                (place / file).write_text(text)
            return
        if "emptyDir" in volume:
            return
        assert volume["secret"] == {"secretName": "ratelimit-tls"}
        authority = trustme.CA()
        issued = authority.issue_cert("ratelimit.ratelimit.svc")
        authority.cert_pem.write_to_path(str(place / "ca.crt"))
        issued.private_key_pem.write_to_path(str(place / "tls.key"))
        issued.cert_chain_pems[0].write_to_path(str(place / "tls.crt"))

    def check(self) -> Printed:
        with contextlib.chdir(self._directory):
            return inside("serve", "--check", environment=self.environment)


@pytest.fixture(
    params=[
        "kustomize base",
        "kustomize plain",
        "kustomize example",
        "helm",
        "helm everything",
        "helm outside",
    ]
)
def shipped(request: pytest.FixtureRequest, tmp_path: Path) -> list[Object]:
    """Everything that can be had of deploy/, in its main forms."""
    kind, _, name = str(request.param).partition(" ")
    if kind == "kustomize":
        return kustomized(name)
    values = {"": {}, "everything": EVERYTHING, "outside": OUTSIDE}[name]
    return charted(tmp_path, values)


def test_objects(shipped: list[Object]) -> None:
    """Kubernetes knows every object and every field, and nothing that belongs to it is missing."""
    assert {each["kind"] for each in shipped} >= OF_SERVICE


def test_starts(shipped: list[Object], tmp_path: Path) -> None:
    """The service would start with the environment, the rules and the certificates of the pod."""
    given = Given(tmp_path, shipped)

    done = given.check()

    assert done == (0, "it would start\n", "")
    assert int(given.environment["RATELIMIT_WORKERS"]) >= 1


def test_pods_may_do_nothing(shipped: list[Object]) -> None:
    """No pod can write its root, gain a privilege, ask Kubernetes, or is told of Services."""
    for each in shipped:
        if each["kind"] not in {"Deployment", "Pod", "StatefulSet"}:
            continue
        pod = each["spec"] if each["kind"] == "Pod" else each["spec"]["template"]["spec"]
        assert pod["enableServiceLinks"] is False
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for one in pod["containers"]:
            assert one["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "memory" in one["resources"]["requests"] or "cpu" in one["resources"]["requests"]


def test_ends_in_time(shipped: list[Object]) -> None:
    """A pod has time for preStop, for the grace of calls in flight (10 s) and for two seconds."""
    pod = only(shipped, "Deployment")["spec"]["template"]["spec"]
    (one,) = pod["containers"]

    sleep = one["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= sleep + 10 + 2


def test_probes(shipped: list[Object]) -> None:
    """A pod lives while it answers, and is ready while it serves."""
    one = container(shipped)

    probes = {name: one[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert probes["startup"] == probes["liveness"] == {"path": "/livez", "port": "http"}
    assert probes["readiness"] == {"path": "/readyz", "port": "http"}


def test_selectors(shipped: list[Object]) -> None:
    """Service, budget, policy and autoscaler mean the pods of the Deployment, and only these."""
    deployment = only(shipped, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    name = deployment["metadata"]["name"]
    found = {
        each["kind"]: each.get("spec", {}) for each in shipped if each["metadata"]["name"] == name
    }

    assert found["Service"]["selector"].items() <= labels
    assert found["PodDisruptionBudget"]["selector"]["matchLabels"].items() <= labels
    assert found["NetworkPolicy"]["podSelector"]["matchLabels"].items() <= labels
    assert found["HorizontalPodAutoscaler"]["scaleTargetRef"]["name"] == name
    assert "replicas" not in deployment["spec"]


def test_ring_has_the_names_of_its_pods(tmp_path: Path) -> None:
    """The store of the pods names every Redis of the StatefulSet, by the name it keeps."""
    for found in (kustomized("example"), charted(tmp_path, {"redis": {"shards": 5}})):
        ring = only(found, "StatefulSet", "redis")
        spec, service = ring["spec"], ring["spec"]["serviceName"]
        hosts = [
            f"{ring['metadata']['name']}-{number}.{service}:6379"
            for number in range(spec["replicas"])
        ]
        environment = {each["name"]: each.get("value") for each in container(found)["env"]}
        assert environment["RATELIMIT_STORE"] == f"redis+ring://{','.join(hosts)}/0"


def test_chart_and_plain_manifests_are_alike(tmp_path: Path) -> None:
    """How a pod is probed, ended, secured and scaled does not depend on who wrote its manifest."""

    def told(found: list[Object]) -> list[object]:
        pod = only(found, "Deployment")["spec"]["template"]["spec"]
        one = container(found)
        scaler = next(each for each in found if each["kind"] == "HorizontalPodAutoscaler")
        return [
            {name: one[name] for name in one if name.endswith("Probe") or name == "lifecycle"},
            one["securityContext"],
            one["resources"],
            pod["securityContext"],
            pod["terminationGracePeriodSeconds"],
            {name: scaler["spec"][name] for name in ("minReplicas", "maxReplicas", "metrics")},
        ]

    assert told(kustomized("example")) == told(charted(tmp_path, {}))


def test_notes(tmp_path: Path) -> None:
    """After an installation Helm says which label callers need, how to test, and where to look."""
    notes = chart(tmp_path, {"networkPolicy": {"clients": {"may": "ask"}}}, "notes").stdout

    (patch,) = re.findall(r"--patch '(.*)'", notes)
    assert json.loads(patch) == {"spec": {"template": {"metadata": {"labels": {"may": "ask"}}}}}
    commands = [line.strip() for line in notes.splitlines() if line.startswith("  ")]
    assert commands[2:] == [
        "helm test edge --namespace ratelimit --logs",
        "kubectl --namespace ratelimit port-forward service/edge 8081",
        "ratelimit hit demo user=alice --repeat 6",
        "kubectl --namespace ratelimit port-forward deployment/edge 8082",
    ]


@pytest.mark.parametrize(
    ("values", "without"),
    [
        ({"networkPolicy": {"enabled": False}}, "LABEL"),
        ({"tls": {"secretName": "a"}}, "ratelimit hit"),
        ({"tls": {"secretName": "a", "clientSan": "b"}}, "helm test"),
        ({"rules": {"a.yaml": "domain: a"}}, "The rules are"),
        ({"rulesConfigMap": "a"}, "hit demo"),
    ],
)
def test_notes_say_only_what_is_so(tmp_path: Path, values: Object, without: str) -> None:
    """What the values leave out is not spoken of."""
    assert without in chart(tmp_path, {}, "notes").stdout
    assert without not in chart(tmp_path, values, "notes").stdout


def test_helm_test(tmp_path: Path) -> None:
    """`helm test` makes a pod that the policy lets in, and that fails unless it is answered."""
    found = charted(tmp_path, {"networkPolicy": {"clients": {"may": "ask"}}})
    (pod,) = [each for each in found if each["kind"] == "Pod"]
    labels = pod["metadata"]["labels"]
    (one,) = pod["spec"]["containers"]
    selectors = [
        policy["spec"]["podSelector"]["matchLabels"]
        for policy in found
        if policy["kind"] == "NetworkPolicy"
    ]

    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert labels["may"] == "ask"
    assert not any(selector.items() <= labels.items() for selector in selectors)
    address = "--address=edge.ratelimit.svc:8081"
    assert address in one["args"]
    service = ServiceProcess(tmp_path)
    asked = [word.replace(address, f"--address={service.address}") for word in one["args"]]
    assert inside(*asked).code == 2
    service.start()
    try:
        assert inside(*asked).code == 0
    finally:
        service.kill()


@pytest.mark.parametrize(
    ("values", "names"),
    [({}, {"demo.yaml"}), ({"rules": {"shop.yaml": "domain: shop"}}, {"shop.yaml"})],
)
def test_rules(tmp_path: Path, values: Object, names: set[str]) -> None:
    """Whoever gives rules has these, and none of the demo."""
    (rules,) = [each for each in charted(tmp_path, values) if each["kind"] == "ConfigMap"]

    assert set(rules["data"]) == names


def test_rules_of_a_config_map_that_exists(tmp_path: Path) -> None:
    """Rules may be in a ConfigMap of somebody else's; the chart makes none then."""
    found = charted(tmp_path, {"rulesConfigMap": "shop"})

    volumes = only(found, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert volumes == [{"name": "rules", "configMap": {"name": "shop"}}]
    assert "ConfigMap" not in {each["kind"] for each in found}


def test_fixed_number_of_pods(tmp_path: Path) -> None:
    """Without an autoscaler there are as many pods as the values say."""
    found = charted(tmp_path, {"autoscaling": {"enabled": False}, "replicas": 3})

    assert only(found, "Deployment")["spec"]["replicas"] == 3
    assert "HorizontalPodAutoscaler" not in {each["kind"] for each in found}


def test_values_that_reach_the_pod(tmp_path: Path) -> None:
    """Labels, account, affinity, volumes and further ways out are where Kubernetes looks."""
    found = charted(tmp_path, EVERYTHING)
    template = only(found, "Deployment")["spec"]["template"]
    pod = template["spec"]
    policy = next(each for each in found if each["kind"] == "NetworkPolicy")

    assert template["metadata"]["labels"]["team"] == "edge"
    assert template["metadata"]["annotations"] == {"note": "edge"}
    assert pod["serviceAccountName"] == "edge"
    assert pod["affinity"] == {"podAntiAffinity": {}}
    assert pod["volumes"][-1] == {"name": "token", "emptyDir": {}}
    assert container(found)["volumeMounts"][-1] == {"name": "token", "mountPath": "/run/token"}
    assert policy["spec"]["egress"][-1] == {"ports": [{"port": 8125, "protocol": "UDP"}]}
    (account,) = [each for each in found if each["kind"] == "ServiceAccount"]
    assert account["metadata"]["name"] == "edge"
    assert account["metadata"]["annotations"] == {"role": "edge"}


def test_every_value_is_explained() -> None:
    """Above every value of the chart stands what it is for."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    unexplained = [
        line
        for above, line in itertools.pairwise(lines)
        if re.match(r" *[a-zA-Z]+: \S", line) and not above.lstrip().startswith("#")
    ]

    # Those within a value that is explained as a whole.
    assert [line.split(":")[0].strip() for line in unexplained] == [
        *("cpu", "memory", "memory"),
    ]


def test_readme_names_values_that_exist(tmp_path: Path) -> None:
    """What the chart's README tells people to set is there, and its example is taken."""
    text = (CHART / "README.md").read_text()
    known = yaml.safe_load((CHART / "values.yaml").read_text())
    table = "".join(line.partition("| ")[2].partition(" | ")[2] for line in text.splitlines())
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)

    named = re.findall(r"`([a-z][A-Za-z]+(?:\.[a-zA-Z]+)*)[:`]", table)
    assert len(named) > 10
    for name in named:
        value = known
        for part in name.split("."):
            value = value[part]
    assert charted(tmp_path, yaml.safe_load(example))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"redis": {"enabled": False}}, "say where counters live"),
        ({"store": {"secretName": "a"}}, "only with redis.enabled=false"),
        ({"rules": {"a": "b"}, "rulesConfigMap": "c"}, "leave one of them out"),
        ({"redsi": {"enabled": False}}, "additional properties 'redsi' not allowed"),
        ({"failurePolicy": "maybe"}, "failurePolicy"),
        ({"image": {"digest": "latest"}}, "digest"),
    ],
)
def test_values_that_are_refused(tmp_path: Path, values: Object, message: str) -> None:
    """The chart refuses values that it does not know, or that say nothing of the store."""
    done = chart(tmp_path, values)

    assert done.returncode == 1
    assert message in done.stderr


def test_field_that_kubernetes_does_not_know(tmp_path: Path) -> None:
    """The check is one: a field in the wrong place is found."""
    file = tmp_path / "service.yaml"
    file.write_text("apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {selectors: {}}\n")

    done = validated("objects", str(file))

    assert (done.returncode, 'unknown field "selectors"' in done.stderr) == (1, True)


def test_istio(tmp_path: Path) -> None:
    """Envoy takes the sample's filter, cluster and actions where Istio puts them."""
    need_envoy()
    sample = yaml.safe_load((DEPLOY / "istio" / "envoyfilter.yaml").read_text())
    patches = {each["applyTo"]: each["patch"] for each in sample["spec"]["configPatches"]}
    config = copy.deepcopy(shipped_config())
    filters = http_manager(config)["http_filters"]
    filters[0] = patches["HTTP_FILTER"]["value"]
    (host,) = http_manager(config)["route_config"]["virtual_hosts"]
    host.update(patches["VIRTUAL_HOST"]["value"])
    (route,) = host["routes"]
    del route["typed_per_filter_config"]
    clusters = config["static_resources"]["clusters"]
    clusters[-1] = patches["CLUSTER"]["value"]
    file = tmp_path / "envoy.yaml"
    file.write_text(yaml.safe_dump(config))

    done = subprocess.run(
        [ENVOY, "--mode", "validate", "--config-path", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert ratelimit_filter(config)["domain"] == "demo"
    assert {patch["operation"] for patch in patches.values()} == {"INSERT_BEFORE", "ADD", "MERGE"}


def test_envoy_gateway() -> None:
    """Envoy Gateway's values name the image that the chart has."""
    values = yaml.safe_load((DEPLOY / "envoy-gateway" / "values.yaml").read_text())
    ours = yaml.safe_load((CHART / "values.yaml").read_text())["image"]["repository"]
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]

    kubernetes = values["config"]["envoyGateway"]["provider"]["kubernetes"]
    container = kubernetes["rateLimitDeployment"]["container"]
    assert container["image"] == f"{ours}:{version}"
    environ = {each["name"]: each["value"] for each in container["env"]}
    settings = from_environment(environ, "")
    assert (settings.denial_body, settings.headers) == ("text", "ietf")


def test_denied_callers_are_told_why() -> None:
    """The rules of the chart and of the manifests are rules/demo.yaml, with its answers."""
    shipped = yaml.safe_load((DEPLOY.parent / "rules" / "demo.yaml").read_text())
    plain = yaml.safe_load((DEPLOY / "kustomize" / "base" / "rules.yaml").read_text())
    chart = yaml.safe_load((CHART / "demo.yaml").read_text())

    assert plain == chart == shipped
    assert shipped["answer"] == {"headers": "x-ratelimit", "body": "text"}

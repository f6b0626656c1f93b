"""Policies on disk: which directories are versions, and what is done about files that somebody changed by hand."""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path

import pytest

from tests.support.homes.versions import publish
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import ConfigError, PolicySpec


@pytest.fixture
def store(tmp_path: Path) -> AdapterStore:
    made = AdapterStore(tmp_path / "policies")
    made.register(PolicySpec(name="p"), "base")
    for number in range(3):
        publish(made, "p", number)
    return made


def folder(store: AdapterStore, name: str) -> Path:
    return store.root / "p" / "versions" / name


@pytest.mark.parametrize("name", ["7.bak", "07", "²", "1 (copy)", "latest"])
def test_a_folder_with_another_name_is_ignored_and_said_once(
    store: AdapterStore, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(folder(store, "2"), folder(store, name))
    (folder(store, name) / "quarantined.json").write_text('{"reason": "it was broken"}')
    for _ in range(2):
        assert store.versions("p") == [0, 1, 2]
        assert store.newest("p") == 2
        assert store.quarantine_reasons("p") == {}
        assert store.broken_newest("p") == {}
        assert store.next_number("p") == 3
    assert caplog.text.count(f"policies/p/versions/{name} is ignored") == 1


def test_what_a_killed_server_was_deleting_is_no_version(store: AdapterStore, caplog: pytest.LogCaptureFixture) -> None:
    store.quarantine("p", 1, "it is broken")
    folder(store, "1").rename(folder(store, ".deleted-1"))
    assert store.quarantine_reasons("p") == {}
    assert caplog.text == "", "the server's own leftovers are nobody's concern"
    store.clean()
    assert sorted(path.name for path in folder(store, "").iterdir()) == ["0", "2"]


def test_a_copy_under_a_free_number_is_not_taken_for_a_version(store: AdapterStore) -> None:
    shutil.copytree(folder(store, "1"), folder(store, "9"))
    assert store.version("p", 9) is None
    assert store.problem("p", 9) == "its version.json is that of p@1"
    assert list(store.broken_newest("p")) == [9]


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"policy": "p"}', "\x00"])
def test_a_damaged_record_is_left_out_and_said(
    store: AdapterStore, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (folder(store, "1") / "version.json").write_text(text)
    for _ in range(2):
        assert store.version("p", 1) is None
        assert [number for number in range(3) if store.version("p", number)] == [0, 2]
        policy = store.policy("p")
        assert policy is not None
        assert "its files are damaged" in policy.quarantined[1]
    assert caplog.text.count("policies/p/versions/1/version.json is left out") == 1
    assert store.made_by("p", "job-1") is None


@pytest.mark.parametrize("text", ["{", "[]", "{}", "null"])
def test_other_damaged_files_are_said_and_do_no_harm(
    store: AdapterStore, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (folder(store, "0") / "score.json").write_text(text)
    (folder(store, "1") / "quarantined.json").write_text(text)
    (store.root / "p" / "highest.json").write_text(text)
    scored = store.version("p", 0)
    assert scored is not None
    assert scored.score is None
    assert "its quarantined.json cannot be read" in store.quarantine_reasons("p")[1]
    assert store.problem("p", 1) == store.quarantine_reasons("p")[1]
    assert store.versions("p") == [0, 2]
    assert store.next_number("p") == 3
    assert "score.json is left out" in caplog.text
    assert "highest.json is left out" in caplog.text


def test_a_damaged_policy_is_not_served_and_the_others_are(store: AdapterStore) -> None:
    store.register(PolicySpec(name="q"), "base")
    (store.root / "q" / "policy.json").write_text("{")
    assert store.names() == ["p", "q"]
    assert "policies/q/policy.json in the server's home cannot be read" in str(store.other_base("q", "base", None))
    assert store.other_base("p", "base", None) is None
    assert [policy.name for policy in store.policies()] == ["p"]
    assert store.spec("q") is None


def test_a_copy_of_a_policy_is_no_policy(store: AdapterStore, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("p.bak", "p (copy)"):
        shutil.copytree(store.root / "p", store.root / name)
    assert store.names() == ["p"]
    assert "policies/p.bak is ignored: its policy.json is that of the policy 'p'" in caplog.text
    assert "policies/p (copy) is ignored" in caplog.text


def test_the_last_version_that_can_be_used_stays_and_others_go(store: AdapterStore) -> None:
    store.quarantine("p", 2, "it is broken")
    with pytest.raises(ConfigError, match="p@1 is the newest"):
        store.delete("p", 1)
    store.delete("p", 2)
    store.quarantine("p", 1, "it is broken")
    store.quarantine("p", 0, "it is broken")
    store.delete("p", 1)  # none is the newest
    assert list(store.quarantine_reasons("p")) == [0]


@pytest.mark.parametrize("number", [-1, 10**9, int("9" * 300)])
def test_a_number_that_no_version_has_is_not_looked_for(store: AdapterStore, number: int) -> None:
    assert store.version("p", number) is None


def test_files_are_parsed_once_and_again_when_they_change(store: AdapterStore, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    plain = Path.read_text

    def read_text(path: Path, *args: object, **options: object) -> str:
        reads.append(path.name)
        return plain(path, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "read_text", read_text)
    for _ in range(3):
        assert [record.version for number in store.versions("p") if (record := store.version("p", number))] == [0, 1, 2]
        assert store.spec("p") == PolicySpec(name="p")
    assert sorted(reads) == ["policy.json", *["version.json"] * 3]
    store.register(PolicySpec(name="p", temperature=0.5), "base")
    assert store.spec("p") == PolicySpec(name="p", temperature=0.5)
    store.score("p", 1, 0.5)
    store.score("p", 1, 0.75)
    scored = store.version("p", 1)
    assert scored is not None
    assert scored.score == 0.75
    assert json.loads((folder(store, "1") / "score.json").read_text())["scored_by"] == "evaluation"


def test_files_that_cannot_be_opened_now_are_not_damaged(store: AdapterStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway asks when an engine could not be reached, which is just when the server has no file left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        problem = store.problem("p", 2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert problem is None

    def no_file_left(*_: object, **__: object) -> None:
        raise FileNotFoundError("No such file or directory")  # as safetensors says it

    monkeypatch.setattr("trainer_server.policies.store.safe_open", no_file_left)
    assert store.problem("p", 2) is None
    (folder(store, "2") / "adapter_model.safetensors").unlink()
    assert store.problem("p", 2) == "adapter_model.safetensors is missing"


def test_a_promotion_that_was_written_without_its_number_counts(store: AdapterStore) -> None:
    (store.root / "p" / "promoted.json").write_text('{"version": 1}')
    assert (store.promoted_version("p"), store.promotions("p")) == (1, 1)
    store.promote("p", 2)
    assert (store.promoted_version("p"), store.promotions("p")) == (2, 2)

"""Backups: whole although the server works on, and a home that a server goes on from."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import stat
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cli import art
from tests.support.fuzzing import json_values, outcome, spoiled, thorough
from tests.support.homes.jobs import ask, finish, groups, step, version_of
from tests.support.homes.ledger_rows import row
from tests.support.homes.versions import publish
from tests.support.servers.processes import processes, version_files
from trainer_server.common import Home
from trainer_server.ledger.archive import Archive, archive_months
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.policies.store import AdapterStore
from trainer_server.server.backup import MANIFEST, back_up, restore
from trainer_server.wire import ConfigError, PolicySpec


def test_a_home_that_does_not_exist_has_no_backup(tmp_path: Path) -> None:
    done = art("backup", str(tmp_path / "copy"), "--home", str(tmp_path / "none"))
    assert "none does not exist: name the home of a server by --home or ART_HOME" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def home_with_a_policy(root: Path) -> Home:
    home = Home(root)
    home.make_private()
    store = AdapterStore(home.policies)
    store.register(PolicySpec(name="p"), "base")
    publish(store, "p", 0)
    (store.root / "p" / "versions" / ".deleted-7").mkdir()
    (home.jobs / "job-1").mkdir(parents=True)
    (home.jobs / "job-1" / "job.json").write_text("{}")
    for name in ("token", "lock", "server.json", "connection.json"):
        (home.root / name).write_text(name)
    return home


@pytest.mark.parametrize("name", ["staging", "prod-wal", "my-shm", "my-journal"])
def test_a_policy_of_any_name_is_in_a_copy(tmp_path: Path, name: str) -> None:
    home = home_with_a_policy(tmp_path / "home")
    store = AdapterStore(home.policies)
    store.register(PolicySpec(name=name), "base")
    publish(store, name, 0)
    store.staging(name, 1)
    back_up(home, tmp_path / "copy")
    restore(tmp_path / "copy", Home(tmp_path / "new"))
    new = AdapterStore(Home(tmp_path / "new").policies)
    assert new.versions(name) == [0]
    assert new.problem(name, 0) is None
    assert not (new.root / name / "staging").exists()


def test_a_link_is_followed_as_the_server_does(tmp_path: Path) -> None:
    home = home_with_a_policy(tmp_path / "home")
    (home.policies / "p").rename(tmp_path / "disk")
    (home.policies / "p").symlink_to(tmp_path / "disk")
    weights = tmp_path / "disk" / "versions" / "0" / "adapter_model.safetensors"
    weights.rename(tmp_path / "weights.safetensors")
    weights.symlink_to(tmp_path / "weights.safetensors")
    back_up(home, tmp_path / "copy")
    restore(tmp_path / "copy", Home(tmp_path / "new"))
    assert AdapterStore(Home(tmp_path / "new").policies).problem("p", 0) is None
    assert not any(path.is_symlink() for path in (tmp_path / "copy").rglob("*"))


@pytest.mark.parametrize("target", ["nothing", "."])
def test_a_link_that_cannot_be_followed_is_named(tmp_path: Path, target: str) -> None:
    home = home_with_a_policy(tmp_path / "home")
    (home.policies / "big").symlink_to(target)
    with pytest.raises(ConfigError, match="policies/big"):
        back_up(home, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_copy_is_whole_while_the_ledger_is_written(tmp_path: Path) -> None:
    home = home_with_a_policy(tmp_path / "home")
    ledger, ended = SQLiteLedger(home.ledger), threading.Event()
    written = 0

    async def write() -> None:
        nonlocal written
        while not ended.is_set():
            await ledger.add(row(f"c{written}"))
            written += 1

    writer = threading.Thread(target=lambda: asyncio.run(write()))
    writer.start()
    while written < 50:
        pass
    before = written
    back_up(home, tmp_path / "copies" / "one")
    ended.set()
    writer.join()
    ledger.close()

    sizes = restore(tmp_path / "copies" / "one", Home(tmp_path / "new"))
    new = Home(tmp_path / "new")
    found = SQLiteLedger(new.ledger).read([f"c{number}" for number in range(written)])
    assert before <= len(found) <= written
    assert found.keys() == {f"c{number}" for number in range(len(found))}, "the first ones, without a gap"
    weights = "policies/p/versions/0/adapter_model.safetensors"
    assert os.path.samefile(home.root / weights, tmp_path / "copies" / "one" / weights), "a hard link takes no space"
    assert AdapterStore(new.policies).problem("p", 0) is None
    assert (new.root / "token").read_text() == "token"
    assert not {"lock", "server.json", "connection.json", MANIFEST} & {path.name for path in new.root.iterdir()}
    assert not any(".deleted" in path for path in sizes)
    for path in new.root.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 or path.suffix == ".safetensors", path


async def test_what_is_archived_meanwhile_is_in_the_copy(tmp_path: Path) -> None:
    """A month moves from the ledger to the archive while both are copied: the ledger goes first."""
    home = home_with_a_policy(tmp_path / "home")
    ledger, archive = SQLiteLedger(home.ledger), Archive(home.archive)
    await ledger.add(row("earlier", 1e9), row("old", 1.1e9))
    assert len(list(archive_months(ledger, archive, 1.05e9))) == 1
    moved: list[tuple[str, int]] = []

    def archives(told: str) -> None:
        if told == "copying ledger.sqlite":
            moved.extend(archive_months(ledger, archive, 1.2e9))

    back_up(home, tmp_path / "copy", archives)
    ledger.close()
    assert len(moved) == 1
    assert set(Archive(tmp_path / "copy" / "archive").read(["earlier", "old"])) == {"earlier", "old"}
    assert not list((tmp_path / "copy" / "archive").glob(".*")), "no locks and no parts"


def test_without_hard_links_weights_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def another_file_system(*_paths: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    home = home_with_a_policy(tmp_path / "home")
    monkeypatch.setattr(os, "link", another_file_system)
    back_up(home, tmp_path / "copy")
    weights = "policies/p/versions/0/adapter_model.safetensors"
    assert not os.path.samefile(home.root / weights, tmp_path / "copy" / weights)
    assert (home.root / weights).read_bytes() == (tmp_path / "copy" / weights).read_bytes()


def test_what_is_no_file_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read a pipe would never end."""
    home = home_with_a_policy(tmp_path / "home")
    inside = home.policies / "p" / "versions" / "0"
    for place in (home.root, home.jobs / "job-1", inside):
        os.mkfifo(place / "pipe")
        os.mkfifo(place / "pipe.safetensors")
        monkeypatch.chdir(place)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket")  # a whole path may be longer than a socket's may
    os.mkfifo(home.root / "pipe.sqlite")
    sizes = back_up(home, tmp_path / "copy")
    assert not [path for path in sizes if "pipe" in path or "socket" in path]
    assert f"left out: {inside / 'pipe'} is neither a file nor a directory" in caplog.text
    assert f"left out: {home.root / 'pipe.sqlite'} is" in caplog.text
    os.mkfifo(tmp_path / "copy" / "pipe")
    restore(tmp_path / "copy", Home(tmp_path / "new"))
    assert not (tmp_path / "new" / "pipe").exists()


def test_a_restored_home_shares_no_file_with_its_backup(tmp_path: Path) -> None:
    home = home_with_a_policy(tmp_path / "home")
    back_up(home, tmp_path / "copy")
    restore(tmp_path / "copy", Home(tmp_path / "new"))
    weights = "policies/p/versions/0/adapter_model.safetensors"
    assert not os.path.samefile(tmp_path / "copy" / weights, tmp_path / "new" / weights)
    (tmp_path / "new" / weights).write_bytes(b"other weights")
    assert (tmp_path / "copy" / weights).read_bytes() == (home.root / weights).read_bytes() != b"other weights"


def test_a_backup_whose_content_has_changed_is_refused(tmp_path: Path) -> None:
    home = home_with_a_policy(tmp_path / "home")
    back_up(home, tmp_path / "copy")
    for name in ("token", "policies/p/versions/0/adapter_model.safetensors"):
        path = tmp_path / "copy" / name
        before = path.read_bytes()
        path.unlink()  # it may be a hard link to the home's
        path.write_bytes(bytes([before[0] ^ 1]) + before[1:])
        with pytest.raises(ConfigError, match=rf"the content of {name} has changed \(SHA-256\)"):
            restore(tmp_path / "copy", Home(tmp_path / "new"))
        assert not (tmp_path / "new").exists()
        path.write_bytes(before)
    restore(tmp_path / "copy", Home(tmp_path / "new"))


def test_a_backup_of_an_earlier_release_has_no_digests(tmp_path: Path) -> None:
    back_up(home_with_a_policy(tmp_path / "home"), tmp_path / "copy")
    manifest = json.loads((tmp_path / "copy" / MANIFEST).read_text())
    del manifest["sha256"]
    (tmp_path / "copy" / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match="is no backup"):
        restore(tmp_path / "copy", Home(tmp_path / "new"))
    (tmp_path / "copy" / MANIFEST).write_text(json.dumps({**manifest, "format": 1}))
    assert restore(tmp_path / "copy", Home(tmp_path / "new")) == manifest["files"]


def test_nothing_is_overwritten_and_a_damaged_copy_is_refused(tmp_path: Path) -> None:
    home = home_with_a_policy(tmp_path / "home")
    SQLiteLedger(home.ledger)
    back_up(home, tmp_path / "copy")
    with pytest.raises(ConfigError, match="is there already"):
        back_up(home, tmp_path / "copy")
    with pytest.raises(ConfigError, match="is inside of"):
        back_up(home, home.root / "copy")
    with pytest.raises(ConfigError, match="is there already"):
        restore(tmp_path / "copy", home)
    with pytest.raises(ConfigError, match="is no backup"):
        restore(home.root, Home(tmp_path / "new"))
    (tmp_path / "copy" / "token").write_text("cut")
    with pytest.raises(ConfigError, match=r"token has 3 bytes and should have 5, and 0 more files differ"):
        restore(tmp_path / "copy", Home(tmp_path / "new"))
    (tmp_path / "copy" / "token").write_text("token")
    path = tmp_path / "copy" / "ledger.sqlite"
    content = bytearray(path.read_bytes())
    content[4096:8192] = b"\xff" * 4096
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"ledger.sqlite.* cannot be restored"):
        restore(tmp_path / "copy", Home(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    assert [one for one in tmp_path.iterdir() if one.name.startswith(".")] == []


others = json_values(st.sampled_from(["files", "format"])) | st.sampled_from([float("inf"), "../../x", "[" * 3000])


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup."""
    root = tmp_path_factory.mktemp("backup")
    home = home_with_a_policy(root / "home")
    SQLiteLedger(home.ledger)
    back_up(home, root / "copy")
    return root / "copy"


@thorough(40)
@given(data=st.data())
def test_whatever_is_in_a_copy_a_home_is_made_of_it_whole_or_not_at_all(copied: Path, data: st.DataObject) -> None:
    with TemporaryDirectory() as scratch:
        copy, new = Path(scratch, "copy"), Path(scratch, "new")
        shutil.copytree(copied, copy)
        manifest = json.loads((copy / MANIFEST).read_text())
        if data.draw(st.booleans()):
            (copy / MANIFEST).write_text(json.dumps(data.draw(spoiled(manifest, others))))
        else:
            victim = copy / data.draw(st.sampled_from(sorted(manifest["files"])))
            content = bytearray(victim.read_bytes())
            at, cut = data.draw(st.integers(0, len(content))), data.draw(st.booleans())
            content[at:] = b"" if cut else data.draw(st.binary(max_size=40)) + content[at + 40 :]
            victim.write_bytes(content)
        sizes = outcome(lambda: restore(copy, Home(new)), ConfigError)
        if isinstance(sizes, ConfigError):
            assert str(copy) in str(sizes)
            assert [path.name for path in Path(scratch).iterdir()] == ["copy"]
        else:
            assert {path.relative_to(new).as_posix() for path in new.rglob("*") if path.is_file()} == set(sizes)


@pytest.mark.slow
def test_a_server_goes_on_from_a_backup_after_the_original_was_killed_and_lost(
    tmp_path: Path, base_model: Path
) -> None:
    with processes(tmp_path / "home", base_model) as first:
        first.start()
        with first.http() as http:
            assert http.post("/api/policies", json={"name": "p"}).status_code == 201
            assert step(http, "p") == 1
            http.put("/api/rollouts/ro-1", json={"scenario": {"id": "s", "input": "say b"}})
            kept = ask(http, "say b", "p@latest", "ro-1")
            http.post("/api/rollouts/ro-1/reward", json={"reward": 0.5})
            done = art("backup", str(tmp_path / "copy"), "--json", "--home", str(tmp_path / "home"))
            assert done.exit_code == 0, done.output
            copied = json.loads(done.stdout)
            assert copied["bytes"] > copied["files"] > 5
            later = ask(http, "say c", "p@latest")
        files = version_files(first.home, "p", 1)
        for victim in ("trainer", "server"):
            first.kill(victim)
    (tmp_path / "home").rename(tmp_path / "lost")
    done = art("restore", str(tmp_path / "copy"), "--json", "--home", str(tmp_path / "home"))
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        "home": str(tmp_path / "home"),
        **{key: copied[key] for key in ("files", "bytes")},
    }
    with processes(tmp_path / "home", base_model) as second:
        second.start()
        assert version_files(second.home, "p", 1) == files
        with second.http() as http:  # with the same key
            assert version_of(http, kept) == 1
            assert http.get("/api/rollouts/ro-1").json()["reward"] == 0.5
            assert http.get(f"/api/completions/{later}").status_code == 404, "it came after the backup"
            body = {"groups": groups(http, 0.0, 1.0, model="p@latest")}
            assert finish(http, http.post("/api/policies/p/steps", json=body))["result"]["version"] == 2
        log = art("audit", "--home", str(tmp_path / "home")).stdout
        assert "policy.create" in log, "what the original did"
        assert "restore" in log
        assert str(tmp_path / "copy") in log, "nothing is cut where no terminal is"

"""However git in a copy names where to push to: nothing outside of the copy is written, and work inside goes on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from art_mcp.client.connection.sdk import Stdio
from art_mcp.client.copies.placing import place_server
from art_mcp.worlds.git import push_guard
from art_mcp.worlds.world import Copy, World
from tests.support.mcp.git_over_http import git_over_http
from tests.support.mcp.originals import digest, git, make_repository

Git = Callable[..., subprocess.CompletedProcess[str]]

HELPER = """\
#!/bin/sh
while read -r line; do
  echo "$line" >> {log}
  case $line in
    capabilities) printf 'push\\nfetch\\n\\n' ;;
    list) printf '1111111111111111111111111111111111111111 refs/heads/main\\n\\n' ;;
    "list for-push") printf '\\n' ;;
    push*) printf 'ok refs/heads/new\\n\\n' ;;
  esac
done
"""
"""A remote helper, as gitremote-helpers(7) describes them, of a repository that takes every push."""


def git_of(copy: Copy) -> Git:
    """Runs git as a server in the copy does: in its environment alone."""
    env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]} | dict(place_server(Stdio(("git",)), copy).env)
    who = ["-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "push.default=current"]

    def run(*words: str, at: Path = copy.home) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *who, *words], cwd=at, env=env, capture_output=True, text=True, timeout=60)

    return run


@pytest.fixture
def originals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`home/site` with its upstream `home/up`, and `home/inner`, which is of the world too. They stay as they are."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    make_repository(home / "site")
    for name in ("up", "inner"):
        git(home, "clone", "-q", "--bare", "site", name)
    yield home
    assert (home / "up" / "HEAD").exists()


def world_of(home: Path) -> World:
    return World([home / "site", home / "inner"], scratch=home.parent / "scratch")


def settings_that_name(home: Path) -> dict[str, list[str]]:
    """Writes settings that name the upstream into the original, each by another branch or remote.

    Returns:
        The words after `git` that push by each.
    """
    site, up = home / "site", str(home / "up")
    for name, value in {
        "remote.url.url": up,
        "remote.pushurl.url": str(home / "inner"),
        "remote.pushurl.pushurl": up,
        "remote.receivepack.url": up,
        "remote.receivepack.receivepack": "env -u GIT_CONFIG_GLOBAL git-receive-pack",
        "branch.by-remote.remote": up,
        "branch.by-push-remote.pushRemote": up,
        f"url.{up}.insteadOf": "short:",
        f"url.{up}/.insteadOf": "longer:",
        f"url.{up}.pushInsteadOf": "https://example.invalid/x",
        "remote.short.url": "short:",
        "remote.longer.url": "longer:",
        "alias.publish": f"!git push {up} HEAD:alias",
        "include.path": "included",
        f"includeIf.gitdir:{site}/.git.path": "conditional",
        "extensions.worktreeConfig": "true",
        "receive.hideRefs": "!refs",
    }.items():
        git(site, "config", name, value)
    git_directory = site / ".git"
    for file, remote in (("included", "by-include"), ("conditional", "by-condition"), ("config.worktree", "worktree")):
        (git_directory / file).write_text(f'[remote "{remote}"]\n\turl = {up}\n[remote]\n\tpushDefault = {up}\n')
    for folder, text in (("remotes", f"URL: {up}\nPush: HEAD\n"), ("branches", f"{up}#main\n")):
        (git_directory / folder).mkdir(exist_ok=True)
        (git_directory / folder / f"of-{folder}").write_text(text)
    (git_directory / "hooks").mkdir(exist_ok=True)
    (git_directory / "hooks" / "post-commit").write_text(f"#!/bin/sh\ngit push {up} HEAD:hook\n")
    (git_directory / "hooks" / "post-commit").chmod(0o755)
    (home / ".gitconfig").write_text(f'[url "{up}"]\n\tpushInsteadOf = https://example.invalid/home\n')
    remotes = ("url", "pushurl", "receivepack", "short", "longer", "by-include", "by-condition", "worktree")
    return {
        **{name: ["push", name, f"HEAD:{name}"] for name in (*remotes, "of-remotes", "of-branches")},
        **{name: ["push", "-f"] for name in ("by-remote", "by-push-remote", "push-default")},
        "alias": ["publish"],
        "push-instead-of": ["push", "https://example.invalid/x", "HEAD:a"],
        "push-instead-of-home": ["push", "https://example.invalid/home", "HEAD:b"],
        "hook": ["commit", "-q", "--allow-empty", "-m", "more"],
    }


@pytest.mark.slow
def test_no_setting_of_the_original_lets_a_copy_push_outside(originals: Path) -> None:
    ways = settings_that_name(originals)
    before = digest(originals)
    with closing(world_of(originals)) as world:
        world.open()
        copy = world.copy()
        run = git_of(copy)
        for way, words in ways.items():
            run("checkout", "-q", "-f", "-B", way)
            assert run("commit", "-q", "--no-verify", "--allow-empty", "-m", way).returncode == 0
            done = run(*words)
            assert digest(originals) == before, f"{way}: {done.stdout}{done.stderr}"
            if way not in ("hook", "pushurl"):  # a commit; a remote whose URL is of the world
                assert done.returncode != 0, way
        assert {f"branch {way}" for way in ways} <= {change.what for change in copy.changes()}
        settings = run("config", "--list", "--show-origin").stdout
        assert "included" not in settings
        assert str(originals / "up") not in run("config", "--get-regexp", "remote.*push.*").stdout


@pytest.mark.slow
def test_no_command_of_a_run_pushes_outside(originals: Path) -> None:
    up = originals / "up"
    with closing(world_of(originals)) as world:
        world.open()
        copy = world.copy()
        run = git_of(copy)
        near = os.path.relpath(up, copy.home)
        (copy.home / "link").symlink_to(up)
        run("commit", "-q", "-a", "-m", "more")
        run("remote", "add", "near", near)
        run("remote", "add", "other", "../inner")
        run("remote", "set-url", "--push", "other", near)
        (copy.home / ".git" / "remotes").mkdir()
        (copy.home / ".git" / "remotes" / "older").write_text(f"URL: {near}\n")
        run("config", "include.path", "more")
        (copy.home / ".git" / "more").write_text("[receive]\n\thideRefs = !refs\n[push]\n\tpushOption =\n")
        before = digest(originals)
        targets = [str(up), f"file://{up}", f"FILE://{up}", "~/up", near, f"./{near}", "link", "near", "other", "older"]
        commands = [
            *(["push", target, "HEAD:new"] for target in targets),
            ["push", "--mirror", near],
            ["push", "--delete", near, "feature"],
            ["push", "--force", "--receive-pack=git-receive-pack", near, "HEAD:main"],
            ["push", f"ext::git-receive-pack {up}", "HEAD:new"],
            ["-c", "protocol.ext.allow=always", "push", f"ext::git-receive-pack {up}", "HEAD:new"],
            ["-c", f"remote.pushDefault={near}", "push"],
            ["-c", f"url.{near}.insteadOf=x:", "push", "x:", "HEAD:new"],
            ["-c", f"url.{up}.pushInsteadOf=https://example.invalid", "push", "https://example.invalid", "HEAD:new"],
            ["-C", str(copy.home / ".git"), "push", str(up), "HEAD:new"],
            ["subtree", "push", "--prefix=.", str(up), "HEAD"],
        ]
        for command in commands:
            done = run(*command)
            assert digest(originals) == before, f"{command}: {done.stdout}{done.stderr}"
            assert done.returncode != 0, command
        contents = {path: seen[:2] for path, seen in before.items()}
        # Without the option, git there refuses after it has received: it writes nothing, but touches times.
        for command in ("-c push.pushOption= push", "send-pack"):
            assert run(*command.split(), near, "HEAD:refs/heads/new").returncode != 0
            assert {path: seen[:2] for path, seen in digest(originals).items()} == contents
        assert "config" in {change.what for change in copy.changes()}


@pytest.mark.slow
def test_work_between_repositories_of_a_copy_goes_on(originals: Path) -> None:
    git(originals / "site", "remote", "add", "origin", str(originals / "inner"))
    git(originals / "site", "config", "branch.main.remote", str(originals / "inner"))
    git(originals / "site", "config", "core.hooksPath", str(originals / "site" / "own-hooks"))
    (originals / ".gitconfig").write_text('[user]\n\tname = "Ada \\"A\\" #1"\n[include]\n\tpath = more\n')
    (originals / "more").write_text("[user]\n\temail = ada@example.com\n")
    before = digest(originals)
    with closing(world_of(originals)) as world:
        world.open()
        assert world.notes == []
        copy = world.copy()
        run = git_of(copy)
        run("checkout", "-q", "-f", "main")
        (copy.home / "notes.txt").write_text("in the copy\n")
        inner = copy.directory / "inner"
        for words in (
            ["commit", "-q", "-a", "-m", "more"],
            ["push", "-q", "origin", "main"],
            ["push", "-q"],
            ["push", "-q", str(inner), "HEAD:second"],
            ["push", "-q", f"file://{inner}", "HEAD:third"],
            ["push", "-q", "../inner", "HEAD:fourth"],
            ["fetch", "-q", "origin"],
            ["clone", "-q", "--bare", ".", "../made"],
            ["remote", "add", "made", "../made"],
            ["push", "-q", "made", "HEAD:fifth"],
            ["clone", "-q", str(inner), "cloned"],
            ["config", "--global", "user.signingKey", "x"],
        ):
            assert (done := run(*words)).returncode == 0, f"{words}: {done.stderr}"
        settings = run("config", "--global", "--list").stdout.splitlines()
        assert {'user.name=Ada "A" #1', "user.email=ada@example.com"} <= {*settings}
        assert run("config", "core.hooksPath").stdout.strip() == str(copy.home / "own-hooks")
        made = {change.what for change in copy.changes() if change.where == "/world/inner"}
        assert {"branch main", "branch second", "branch third", "branch fourth"} <= made
        assert world.copy().changes() == []
    assert digest(originals) == before


@pytest.mark.slow
def test_a_copy_reads_from_other_hosts_and_has_nobodys_credentials(originals: Path, tmp_path: Path) -> None:
    log, program = tmp_path / "log", tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexit 1\n')
    program.chmod(0o755)
    git(originals / "site", "config", "core.sshCommand", str(program))
    git(originals / "site", "config", "credential.helper", f"!{program} local")
    git(originals / "site", "config", "http.https://example.com/.extraHeader", "Authorization: Basic abc")
    git(originals / "site", "remote", "add", "web", "https://me:secret@example.com/x")
    (originals / ".gitconfig").write_text(f"[credential]\n\thelper = !{program} global\n")
    with closing(world_of(originals)) as world:
        world.open()
        copy = world.copy()
        run = git_of(copy)
        for target in ("ssh://example.com/x", "git@example.com:x"):
            assert run("push", target, "HEAD:new").returncode != 0
            assert not log.exists()
            assert run("fetch", target).returncode != 0
            assert "git-upload-pack" in log.read_text()
            log.unlink()
        run("config", "credential.helper", f"!{program} of the run")
        for words in (["credential", "fill"], ["fetch", "https://127.0.0.1:1/x"]):
            assert run(*words).returncode != 0
            assert not log.exists()
        assert "secret" not in run("config", "--list").stdout
        assert "Basic" not in run("config", "--list").stdout


@pytest.mark.slow
@pytest.mark.parametrize("how", ["alternates", "links", "worktree", "settings"])
def test_a_repository_that_has_parts_elsewhere_writes_nothing_there(how: str, originals: Path) -> None:
    lender, site = originals / "lender", originals / "borrower"
    make_repository(lender)
    if how == "worktree":  # a linked one, beside its main repository in the same place
        site.mkdir()
        (lender / "inside").mkdir()
        git(lender, "worktree", "add", "-q", str(lender / "inside" / "linked"), "feature")
        site = lender
    else:
        git(originals, "clone", "-q", *(["--shared"] if how == "alternates" else []), "lender", "borrower")
    own = site / ".git"
    if how == "links":  # as git-new-workdir makes them
        for name in ("refs", "objects", "logs/refs", "config", "packed-refs"):
            target = lender / ".git" / name
            target.exists() or target.touch()
            subprocess.run(["rm", "-rf", str(own / name)], check=True)
            (own / name).symlink_to(target)
    elif how == "settings":
        git(site, "config", "core.worktree", "../../site")
        git(site, "config", "extensions.worktreeConfig", "true")
        git(site, "config", "--worktree", "core.worktree", str(originals / "site"))
    for entry in (lender / ".git" / "objects").rglob("*"):
        os.utime(entry, ns=(10**18, 10**18))
    before = digest(originals)
    with closing(World(site, scratch=originals.parent / "scratch")) as world:
        world.open()
        copy = world.copy()
        run = git_of(copy)
        at = copy.home / "inside" / "linked" if how == "worktree" else copy.home
        assert run("fsck", at=at).returncode == 0
        (at / "notes.txt").write_text("one\n")  # its object is there already
        for words in (["add", "."], ["commit", "-q", "--allow-empty", "-m", "more"], ["branch", "made"], ["gc", "-q"]):
            assert (done := run(*words, at=at)).returncode == 0, done.stderr
        assert "branch made" in {change.what for change in copy.changes()}
    assert digest(originals) == before


@pytest.mark.slow
def test_no_spelling_of_a_url_in_settings_leads_a_push_to_another_host(originals: Path) -> None:
    host = "http://127.0.0.1:1/"
    (originals / ".gitconfig").write_text(f'[url "{host}"]\n\tinsteadOf = user:\n')
    (originals / "system").write_text(f'[url "{host}"]\n\tpushInsteadOf = system://\n\tinsteadOf = sys:\n')
    git(originals / "site", "config", f"url.{host}.insteadOf", "own:")
    with closing(world_of(originals)) as world:
        world.open()
        copy = world.copy()
        env = copy.git_environment({"GIT_CONFIG_SYSTEM": str(originals / "system")})
        for url in (f"http::{host}up", f"https::{host}up", "user:up", "system://up", "sys:up", "own:up"):
            command = ["git", "push", url, "HEAD:new"]
            done = subprocess.run(command, cwd=copy.home, env={**os.environ, **env}, capture_output=True, text=True)
            assert done.returncode != 0
            assert "127.0.0.1" not in done.stderr or "no-push" in done.stderr, url


@pytest.mark.slow
def test_a_copy_reads_over_http_and_pushes_nothing_there(originals: Path) -> None:
    with closing(world_of(originals)) as world, git_over_http(originals) as (host, requests):
        world.open()
        copy = world.copy()
        run = git_of(copy)
        url = f"{host}/up"
        (originals / ".netrc").write_text("default login me password secret\n")
        before = digest(originals)
        run("commit", "-q", "-a", "-m", "more")
        for words in (["clone", "-q", url, "cloned"], ["remote", "add", "web", url], ["fetch", "-q", "web"]):
            assert (done := run(*words)).returncode == 0, done.stderr
        assert run("-c", "protocol.version=0", "fetch", "-q", url, "feature").returncode == 0
        assert run("ls-remote", f"{host}/none").returncode != 0
        del requests[:]
        run("remote", "set-url", "--push", "web", url)
        run("config", f"url.{host}/.insteadOf", "own:")
        run("config", f"url.{host}/.pushInsteadOf", "http://example.invalid/")
        run("config", "push.gpgSign", "false")
        for command in (
            "push web HEAD:new",
            "push own:up HEAD:new",
            "push http://example.invalid/up HEAD:new",
            f"-c url.{host}/.insteadOf=x: push x:up HEAD:new",
            f"-c url.{host}/.pushInsteadOf=http://u -c push.pushOption= push --no-verify http://uup HEAD:new",
            "-c push.pushOption= -c core.hooksPath=/dev/null -c protocol.version=0 push --mirror web",
            "-c push.pushOption= -c protocol.version=1 push --delete web feature",
            f"-c remote.x.url={url} -c remote.x.vcs=http push x HEAD:new",
            f"http-push {url} main",
        ):
            done = run(*command.split())
            assert (done.returncode != 0, requests) == (True, []), f"{command}: {done.stderr}"
            assert push_guard.REFUSAL in done.stderr, f"{command}: {done.stderr}"
        assert digest(originals) == before


@pytest.mark.slow
def test_helpers_of_other_software_read_and_push_nothing(
    originals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "git-remote-mine").write_text(HELPER.format(log=tmp_path / "log"))
    (commands / "git-remote-mine").chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    with closing(world_of(originals)) as world:
        world.open()
        run = git_of(world.copy())
        assert run("ls-remote", "mine::x").stdout.split() == ["1" * 40, "refs/heads/main"]
        (tmp_path / "log").unlink()
        assert push_guard.REFUSAL in run("push", "mine::x", "HEAD:new").stderr
        assert not (tmp_path / "log").exists() or "push" not in (tmp_path / "log").read_text()


def test_directories_of_programs_that_cannot_be_read_are_passed_over(
    originals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir(mode=0o000)  # root reads it all the same
    (tmp_path / "file").touch()
    ways = [tmp_path / name for name in ("closed", "file", "missing")]
    monkeypatch.setenv("PATH", os.pathsep.join([*map(str, ways), os.environ["PATH"]]))
    with closing(world_of(originals)) as world:
        world.open()
        assert git_of(world.copy())("status", "--short").returncode == 0


@pytest.mark.slow
def test_a_repository_outside_that_takes_push_options_is_not_touched(originals: Path) -> None:
    up = originals / "up"
    for name, value in (("receive.advertisePushOptions", "true"), ("receive.hideRefs", "!refs")):
        git(up, "config", "--add", name, value)
    with closing(world_of(originals)) as world:
        world.open()
        copy = world.copy()
        run = git_of(copy)
        run("commit", "-q", "-a", "-m", "more")
        run("remote", "add", "web", "https://example.invalid/x")
        run("remote", "set-url", "--push", "web", str(up))
        for name in ("link", "ending.git"):
            (copy.directory / name).symlink_to(up)
        (copy.directory / "inside").mkdir()
        (copy.directory / "inside" / ".git").symlink_to(up)
        before = digest(originals)
        near = os.path.relpath(up, copy.home)
        for target in ("../link", "../ending", "../inside", str(copy.directory / "ending")):
            assert push_guard.REFUSAL in run("-c", "push.pushOption=", "push", target, "HEAD:new").stderr
        for words in (["web"], [near], ["--receive-pack=git-receive-pack", near], ["--no-verify", near]):
            assert push_guard.REFUSAL in run("-c", "push.pushOption=", "push", *words, "HEAD:new").stderr
        assert run("send-pack", near, "HEAD:refs/heads/new").returncode != 0
        assert digest(originals) == before


@pytest.mark.slow
def test_hooks_of_the_repository_run_as_they_do_elsewhere(originals: Path) -> None:
    hooks = originals / "site" / ".git" / "hooks"
    for name in ("pre-commit", "pre-push"):
        (hooks / name).write_text(f"#!/bin/sh\necho {name} >> log\n")
        (hooks / name).chmod(0o755)
    with closing(world_of(originals)) as world:
        world.open()
        copy = world.copy()
        run = git_of(copy)
        assert run("commit", "-q", "-a", "-m", "more").returncode == 0
        assert run("push", "-q", "../inner", "HEAD:new").returncode == 0
        assert (copy.home / "log").read_text() == "pre-commit\npre-push\n"


@pytest.mark.slow
def test_no_program_of_git_sends_commits_elsewhere(originals: Path, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for path in Path(git(originals / "site", "--exec-path")).iterdir():
        (programs / path.name).symlink_to(path)
    for name in ("git-svn", "git-p4", "git-send-email"):
        (programs / name).unlink(missing_ok=True)
        (programs / name).write_text(f"#!/bin/sh\necho {name} $1\n")
        (programs / name).chmod(0o755)
    with closing(world_of(originals)) as world:
        world.open()
        copy = world.copy()
        env = {**os.environ, **copy.git_environment({"GIT_EXEC_PATH": str(programs)})}
        for words in ("svn dcommit", "svn tag x", "p4 submit", "send-email x", "svn log", "p4 sync"):
            done = subprocess.run(["git", *words.split()], cwd=copy.home, env=env, capture_output=True, text=True)
            if words in ("svn log", "p4 sync"):
                assert done.stdout == f"git-{words}\n"
            else:
                assert (done.stdout, done.stderr) == ("", f"{push_guard.REFUSAL}\n")

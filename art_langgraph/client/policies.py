"""Policies and their versions. A part of TrainerClient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from art_langgraph.client.api import ServerAPI, read_error
from art_langgraph.client.download import fetch
from trainer_server.common.jsonl import explain
from trainer_server.common.status import Curve
from trainer_server.wire import CanaryCounts, ConfigError, Erased, ExportFormat, Fork, Policy, PolicySpec, Version


class PolicyAPI(ServerAPI):
    """Policies are created, forked and listed; versions are listed, scored, promoted, exported and deleted."""

    async def create_policy(
        self,
        name: str,
        *,
        rank: int | None = None,
        alpha: float | None = None,
        targets: Sequence[str] | None = None,
        seed: int | None = None,
        temperature: float | None = None,
        fork_of: Fork | None = None,
    ) -> Policy:
        """Creates a policy, a LoRA on the server's base model, or returns the existing one of that name.

        A value that is None takes its default, or in a fork the value of the source. An existing policy must have the
        same values.

        Args:
            name: Letters, digits, `.`, `_` and `-`; not the base model's name.
            rank: LoRA rank: 1, 8, 16, 32, 64, 128 or 256 (default 8).
            alpha: LoRA scale; the adapter adds (alpha / rank)·B·A (default 16).
            targets: Names of the linear layers that get an adapter, or `attention` (default: all that the model has).
            seed: Seeds the initial A matrices; B starts at 0 (default 0).
            temperature: Sampling temperature of requests without a temperature header. It overrides what a graph
                hard-codes.
            fork_of: Start from a version of another policy, whose rank, alpha, targets and seed it takes, as `fork`
                does.

        Raises:
            ConfigError: A value is out of its range.
            ServerError: 409 when the policy exists with other values.
        """
        values = {
            "rank": rank,
            "alpha": alpha,
            "targets": targets,
            "seed": seed,
            "temperature": temperature,
            "fork_of": fork_of,
        }
        try:
            spec = PolicySpec.model_validate(
                {"name": name} | {key: value for key, value in values.items() if value is not None}
            )
        except ValidationError as error:
            raise ConfigError(f"create_policy({name!r}): {explain(error)}") from None
        body = spec.model_dump(mode="json", exclude_unset=True)
        return await self._read(Policy, "POST", "/api/policies", json=body, timeout=600)

    async def fork(self, policy: str, version: int, name: str, *, optimizer: bool = True) -> Policy:
        """Creates a policy whose version 0 is a version of another policy. Calling it again returns the same policy.

        Args:
            policy: The policy to start from.
            version: Its version.
            name: The policy to create.
            optimizer: Whether its training goes on with that version's optimizer state.

        Raises:
            ServerError: 409 when `name` exists as something else.
        """
        return await self.create_policy(name, fork_of=Fork(policy=policy, version=version, optimizer=optimizer))

    async def policies(self) -> list[Policy]:
        """All policies of the server."""
        records = (await self._request("GET", "/api/policies")).json()["policies"]
        return [Policy.model_validate(record) for record in records]

    async def policy(self, name: str) -> Policy:
        """A policy by its name. Raises ServerError 404 where there is none."""
        return await self._read(Policy, "GET", f"/api/policies/{name}")

    async def versions(self, policy: str) -> list[Version]:
        """Versions of a policy, oldest first. Raises ServerError 404 where there is no such policy."""
        records = (await self._request("GET", f"/api/policies/{policy}/versions")).json()["versions"]
        return [Version.model_validate(record) for record in records]

    async def curves(self, policy: str, scenario: str = "") -> dict[str, Curve]:
        """The learning curves of a policy, by name: `held-out success`, `reward of runs`, `success of runs`,
        `reward of node NODE`, `score`, and each metric of its steps.

        Args:
            policy: Its name.
            scenario: Id of a scenario, for the curves of its runs only; empty: of all.

        Raises:
            ServerError: 404, there is no such policy.
        """
        params = {"scenario": scenario} if scenario else {}
        answer = (await self._request("GET", f"/api/policies/{policy}/curves", params=params)).json()
        return {name: Curve.model_validate(curve) for name, curve in answer.items()}

    async def delete_policy(self, name: str) -> Erased:
        """Deletes a policy: its versions, its jobs, and all runs in which it answered. Its name cannot be used again.
        The token needs the scope admin.

        Raises:
            ServerError: 404, there is none; 409, a job, a rollout or an export needs it.
        """
        return await self._read(Erased, "DELETE", f"/api/policies/{name}", timeout=600)

    async def delete_version(self, policy: str, version: int) -> None:
        """Deletes a version. Raises ServerError 409 for the newest version and for a version in use."""
        await self._request("DELETE", f"/api/policies/{policy}/versions/{version}")

    async def score_version(self, policy: str, version: int, score: float) -> None:
        """Records how good a version is, by an evaluation of your own.

        A server with `--keep-versions` never deletes the best version. While no version has a score, the best version
        is that whose rollouts had the highest mean reward.

        Args:
            policy: Name of the policy.
            version: Its version.
            score: Larger is better.

        Raises:
            ConfigError: The score is not finite.
        """
        if not math.isfinite(score):
            raise ConfigError(
                f"score={score} of {policy}@{version} is not finite: versions are compared by their scores"
            )
        await self._request("PUT", f"/api/policies/{policy}/versions/{version}/score", json={"score": score})

    async def promote(self, policy: str, version: int | None, *, after: int | None = None) -> Policy:
        """Promotes a version: the policy's name means it from now on, whatever is newer.

        `agent` is then this version for whoever asks, `agent@latest` the newest one. Training goes on from the newest,
        and `train` samples from it. A promoted version is never deleted. Rollouts that have begun keep their version.
        A promotion ends the trial of a candidate.

        Args:
            policy: Name of the policy.
            version: Its version; None: the name means the newest again.
            after: Only if `Policy.promotions` is this number: nobody has promoted since it was read. None: in any case.

        Returns:
            The policy, with `promoted`.

        Raises:
            ServerError: 404 where there is no such version, 409 where somebody has promoted meanwhile (`after`), 503
                while the engines cannot load it.
        """
        body = {"version": version, "after": after}
        return await self._read(Policy, "PUT", f"/api/policies/{policy}/promotion", json=body, timeout=600)

    async def serve_candidate(
        self, policy: str, version: int, share: float, *, after: int | None = None
    ) -> CanaryCounts:
        """Tries a version on a share of the new rollouts that ask for the policy by its name.

        The promoted version answers the others, and requests without a rollout. Each rollout stays with the version
        that it began with. Calling it again changes nothing.

        Args:
            policy: Name of the policy. One of its versions must be promoted.
            version: The candidate.
            share: Its share of the new rollouts, above 0 and up to 1. It never gets more.
            after: Value that `Policy.promotions` must still have: nobody has promoted since it was read. None: any
                value.

        Returns:
            The candidate, and how many rollouts it has got.

        Raises:
            ServerError: 404 where there is no such version, 409 where none is promoted, or this one is, or somebody
                has promoted meanwhile (`after`), 503 while the engines cannot load it.
        """
        body = {"version": version, "share": share, "after": after}
        return await self._read(CanaryCounts, "PUT", f"/api/policies/{policy}/candidate", json=body, timeout=600)

    async def candidate(self, policy: str) -> CanaryCounts:
        """The version that is tried beside the promoted one, and how many rollouts it has got."""
        return await self._read(CanaryCounts, "GET", f"/api/policies/{policy}/candidate")

    async def end_candidate(self, policy: str, version: int | None = None) -> None:
        """Ends the trial of a candidate. Rollouts that began with it keep it.

        Args:
            policy: Name of the policy.
            version: Only if this version is tried; None: whichever is. Where none is tried, nothing happens.

        Raises:
            ServerError: 404 where another version is tried.
        """
        params = {} if version is None else {"version": version}
        await self._request("DELETE", f"/api/policies/{policy}/candidate", params=params)

    async def export(
        self,
        policy: str,
        version: int,
        directory: str | Path,
        format: ExportFormat = "peft",
        *,
        force: bool = False,
        progress: bool = False,
    ) -> Path:
        """Writes a version into a directory, with a model card. The directory gets all the files or none.

        Merging takes the server seconds to minutes, and the base model's size in memory and on disk.

        Args:
            policy: Name of the policy.
            version: Its version.
            directory: Where to write; made if it is missing.
            format: `peft`: the adapter in PEFT's format. `merged`: merged into the base model, for transformers and
                vLLM. `gguf`: the same as one file for llama.cpp.
            force: Write into a directory that has files already. Files of the same names are replaced, and those of
                an export in another format are removed.
            progress: Show a bar on the terminal.

        Returns:
            The directory.

        Raises:
            ConfigError: The directory has files already, or cannot be written, or a folder has the name of a file.
            ServerError: 404 where there is no such version, 422 for what a format cannot hold.
        """
        directory = Path(directory)
        if not force and directory.is_dir() and any(directory.iterdir()):
            raise ConfigError(
                f"{directory} is not empty: give another directory, or force=True (`--force`) to write into it"
            )
        path = f"/api/policies/{policy}/versions/{version}/export"
        return await fetch(self._http, path, {"format": format}, directory, error_reader=read_error, progress=progress)

"""The trial of a candidate: it answers a share of the new rollouts, is compared, and takes over or goes."""

from __future__ import annotations

import logging
from typing import Any

from art_langgraph.auto_pilot.decision import Outcomes, Verdict, decide
from art_langgraph.auto_pilot.runs import RunSource, count
from art_langgraph.auto_pilot.settings import AutopilotOptions
from art_langgraph.auto_pilot.state import Pause, State
from art_langgraph.auto_pilot.state_store import Journal
from trainer_server.wire import CanaryCounts, Candidate, Policy, ServerError

log = logging.getLogger("art_langgraph")

BY_HAND, NOTHING_PROMOTED = "promoted_by_hand", "nothing_promoted"
"""Causes of a pause."""
PROMOTED_MEANWHILE = "promoted_meanwhile"
"""The server's code for a request that counts on fewer promotions than there were."""


class Trial:
    """The phases canary and deciding of one policy.

    Args:
        options: Of the autopilot.
        journal: Where states are written.
        run_source: The runs of the deployment.
    """

    def __init__(self, options: AutopilotOptions, journal: Journal, run_source: RunSource) -> None:
        self._policy, self._client, self._journal, self._run_source = (
            options.policy,
            options.client,
            journal,
            run_source,
        )
        self._share, self._success, self._rules = options.share, options.success, options.rules
        self._share_warning_due = True

    async def compare(self, state: State, policy: Policy) -> None:
        """Serves the candidate to its share, and decides once the outcomes tell."""
        assert state.candidate is not None
        if state.since is None:
            return await self._begin(state)
        counts = await self._client.candidate(self._policy)
        if counts.candidate is None or counts.candidate.version != state.candidate:
            why = policy.quarantined.get(state.candidate, "somebody ended its canary")
            state.decide(Verdict.abandon, f"it is served no longer: {why}")
        else:
            self._warn_of_other_share(counts.candidate)
            candidate, champion, numbers = await self.outcomes(state, counts)
            decision = decide(
                candidate, champion, self._rules, expected_version=state.champion, promoted_version=policy.promoted
            )
            if decision.verdict == Verdict.wait:
                return
            state.decide(decision.verdict, decision.reason, numbers)
        await self._journal.write(state)
        await self.carry_out(state)

    async def outcomes(self, state: State, counts: CanaryCounts) -> tuple[Outcomes, Outcomes, dict[str, Any]]:
        """How the runs of both versions ended since the canary began.

        Args:
            state: In the phase canary.
            counts: What the server knows of it.

        Returns:
            The candidate's, the promoted version's, and both as JSON.
        """
        assert state.candidate is not None
        assert state.since is not None
        runs = await self._run_source.runs(state.since)
        candidate = count(runs, self._policy, state.candidate, self._success)
        champion = count(runs, self._policy, state.champion, self._success)
        numbers = {
            "candidate": candidate.numbers(state.candidate),
            "champion": champion.numbers(state.champion),
            "rollouts": counts.rollouts,
            "taken": counts.taken,
        }
        return candidate.outcomes, champion.outcomes, numbers

    def _warn_of_other_share(self, candidate: Candidate) -> None:
        """Warns, once, where the candidate was given another share than it would be given now."""
        if candidate.share != self._share and self._share_warning_due:
            self._share_warning_due = False
            log.warning(
                "%s@%d keeps the share of %g%% that its canary began with: the share of %g%% holds from the next "
                "candidate on (`art-langgraph autopilot --stop` rolls the present one back)",
                self._policy,
                candidate.version,
                100 * candidate.share,
                100 * self._share,
            )

    async def _begin(self, state: State) -> None:
        assert state.candidate is not None
        try:
            counts = await self._client.serve_candidate(
                self._policy, state.candidate, self._share, after=state.promotions
            )
        except ServerError as error:
            if error.status == 404:
                state.decide(Verdict.abandon, f"it cannot be served: {error}")
                await self._journal.write(state)
                return await self.carry_out(state)
            if error.code != PROMOTED_MEANWHILE:
                raise
            return await self.accept_promotion(state, await self._client.policy(self._policy))
        assert counts.candidate is not None
        state.since = counts.candidate.since
        reason = f"it answers {self._share:.0%} of new rollouts, {self._policy}@{state.champion} the others"
        await self._journal.note(state, "canary", reason, share=self._share, champion=state.champion)

    async def carry_out(self, state: State) -> None:
        """Does what was decided, also where an earlier process may have done it."""
        assert state.candidate is not None
        if state.verdict == Verdict.promote:
            return await self._promote(state, state.candidate)
        await self._end_canary(state.candidate)
        event = "rolled_back" if state.verdict == Verdict.roll_back else "abandoned"
        entry = self._journal.entry(state, event, state.reason, **state.numbers)
        state.collect()
        await self._journal.write(state, entry)

    async def _promote(self, state: State, candidate: int) -> None:
        try:
            policy = await self._client.promote(self._policy, candidate, after=state.promotions)
        except ServerError as error:
            if error.code != PROMOTED_MEANWHILE:
                raise
            policy = await self._client.policy(self._policy)
            if (policy.promoted, policy.promotions) != (candidate, state.promotions + 1):
                return await self.accept_promotion(state, policy)  # else the answer to an earlier request was lost
        entry = self._journal.entry(state, "promoted", state.reason, **state.numbers)
        state.collect()
        state.champion, state.promotions = policy.served, policy.promotions
        await self._journal.write(state, entry)

    async def _end_canary(self, candidate: int) -> None:
        try:
            await self._client.end_candidate(self._policy, candidate)
        except ServerError as error:
            if error.status != 404:  # else another version is tried, by hand
                raise

    async def accept_promotion(self, state: State, policy: Policy) -> None:
        """Accepts a promotion by hand. It ended the canary, and stays."""
        means = f"{self._policy}@{policy.served}" + ("" if policy.promoted is not None else ", its newest version")
        entries = []
        if state.candidate is not None:
            text = f"{self._policy!r} was promoted by hand meanwhile, and is {means}: that stays"
            entries.append(self._journal.entry(state, "abandoned", text, promoted=policy.promoted))
        state.collect()
        state.champion, state.promotions = policy.served, policy.promotions
        reason = f"somebody promoted, and {self._policy!r} is {means} now"
        remedy = "It stays until you go on with --resume: candidates are then trained from it and compared with it"
        await self._journal.pause(state, Pause(cause=BY_HAND, reason=reason, remedy=remedy), *entries)

    async def nothing_promoted(self, state: State, policy: Policy) -> None:
        """The promoted version cannot be used any more, and its name means the newest, which has had no canary."""
        why = policy.quarantined.get(state.champion, f"{self._policy}@{state.champion} is not promoted any more")
        entries = []
        if state.candidate is not None:
            entries.append(self._journal.entry(state, "abandoned", f"there is nothing to compare it with: {why}"))
        state.collect()
        newest = f"{self._policy}@{policy.latest}"
        remedy = f"Promote a version (`art-langgraph promote`) and go on with --resume, which else promotes {newest}"
        reason = f"{self._policy!r} means its newest version, {newest}: {why}"
        await self._journal.pause(state, Pause(cause=NOTHING_PROMOTED, reason=reason, remedy=remedy), *entries)

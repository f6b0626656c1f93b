"""What every ledger must do, as tests. A subclass says by the fixture `place` which ledger is held against them.

`place.open()` opens the ledger as a server does; each call is another server, or a trainer process.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.homes.ledger_rows import row
from tests.support.patience import PATIENCE
from trainer_server.common import Home
from trainer_server.ledger.base import ErasesCompletions, Ledger, LedgerError, ListsCompletions, TakesRows
from trainer_server.ledger.registry import open_ledger
from trainer_server.wire import Completion, CompletionStatus

OLD = time.time() - 40 * 86400
"""A time before the retention of 30 days."""


@dataclass
class Place:
    """Where a ledger is.

    Args:
        name: As `serve --ledger` takes it.
        home: The home of its server.
    """

    name: str
    home: Path
    _opened: list[Ledger] = field(default_factory=list)

    def open(self) -> Any:
        """The ledger, which is closed after the test."""
        ledger = open_ledger(self.name, Home(self.home))
        self._opened.append(ledger)
        return ledger

    def close(self) -> None:
        for ledger in self._opened:
            ledger.close()


def changed(one: str, created: float | None = None, **values: object) -> Completion:
    """A row with other values."""
    return row(one, created).model_copy(update=values)


class LedgerTests:
    """Held against a ledger by a subclass of the name `Test…`."""

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        raise NotImplementedError

    @pytest.fixture
    def ledger(self, place: Place) -> Iterator[Any]:
        yield place.open()
        place.close()

    async def test_what_is_read_is_what_was_added(self, ledger: Ledger, place: Place) -> None:
        rows = [row(f"c{number}") for number in range(1200)]
        await asyncio.gather(*(ledger.add(one) for one in rows))
        ids = [one.id for one in rows]
        for reader in (ledger, place.open()):
            assert reader.read([*ids, "unknown"]) == dict(zip(ids, rows, strict=True))
        assert ledger.read([]) == {}

    async def test_a_trainer_sees_a_row_as_soon_as_it_is_added(self, ledger: Ledger, place: Place) -> None:
        reader = place.open()
        for number in range(10):
            await ledger.add(row(f"c{number}"))
            assert set(reader.read([f"c{number}"])) == {f"c{number}"}

    async def test_rows_that_another_process_has_made_are_what_add_would_write(self, ledger: Ledger) -> None:
        if not isinstance(ledger, TakesRows):
            pytest.skip("the ledger takes whole completions alone")
        whole, odd = changed("whole", rollout="r"), changed("odd", rollout="a\0b", message={"content": "\ud83d"})
        beside = row("beside")
        rows = [pickle.loads(pickle.dumps(ledger.row_of(one))) for one in (whole, odd)]
        await asyncio.gather(ledger.add_rows(rows), ledger.add(beside))
        assert ledger.read(["whole", "odd", "beside"]) == {"whole": whole, "odd": odd, "beside": beside}
        assert ledger.rollout("r") == [whole]

    async def test_a_known_id_replaces_the_earlier_completion(self, ledger: Ledger) -> None:
        await ledger.add(row("a"), changed("a", version=2))
        assert ledger.sampled_versions(["a"]) == {("agent", 2)}
        await ledger.add(changed("a", version=3, rollout="r"))
        assert [one.version for one in ledger.rollout("r")] == [3]

    async def test_a_rollout_has_its_completions_in_order(self, ledger: Ledger) -> None:
        await ledger.add(
            changed("second", 2.0, rollout="r"),
            changed("first", 1.0, rollout="r", status=CompletionStatus.aborted),
            changed("of another", 1.5, rollout="other"),
            row("of none", 1.5),
        )
        assert [one.id for one in ledger.rollout("r")] == ["first", "second"]
        assert ledger.rollout("unknown") == []

    async def test_completions_of_the_base_model_have_no_version(self, ledger: Ledger) -> None:
        await ledger.add(row("a"), changed("b", version=7), changed("base", policy=None, version=None))
        assert ledger.sampled_versions(["a", "b", "base", "unknown"]) == {("agent", 1), ("agent", 7)}
        assert ledger.sampled_versions(["base"]) == set()

    async def test_a_cancelled_request_is_recorded_all_the_same(self, ledger: Ledger, place: Place) -> None:
        task = asyncio.create_task(ledger.add(row("cancelled")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        ledger.close()
        assert "cancelled" in place.open().read(["cancelled"])

    @pytest.mark.parametrize("text", ["\ud83d", "a\0b", "\U0001f600 ' \" % \\ ?"])
    async def test_any_text_is_kept_and_read(self, ledger: Ledger, text: str) -> None:
        asked = {"messages": [{"role": "user", "content": text}]}
        odd = changed("odd", request=asked, message={"content": text})
        await asyncio.wait_for(ledger.add(odd), PATIENCE)
        assert ledger.read(["odd"]) == {"odd": odd}

    @pytest.mark.parametrize("text", ["a\0b", "'; DROP TABLE completions; --", "%s ? \\"])
    async def test_a_rollout_may_have_any_id(self, ledger: Ledger, text: str) -> None:
        odd = changed("odd", rollout=text)
        await ledger.add(odd)
        assert ledger.rollout(text) == [odd]
        assert ledger.rollout("\ud83d") == []

    async def test_a_row_that_cannot_be_written_fails_alone(self, ledger: Ledger) -> None:
        bad = changed("bad", request={"messages": object()})
        adding = (ledger.add(one) for one in (row("before"), bad, row("after")))
        before, failed, after = await asyncio.wait_for(asyncio.gather(*adding, return_exceptions=True), PATIENCE)
        assert before is after is None
        assert isinstance(failed, LedgerError)
        assert "bad cannot be written" in str(failed)
        await asyncio.wait_for(ledger.add(row("later")), PATIENCE)
        assert set(ledger.read(["before", "bad", "after", "later"])) == {"before", "after", "later"}

    async def test_retention_spares_what_open_jobs_name(self, ledger: Ledger) -> None:
        await ledger.add(row("old", OLD), row("old but named", OLD), row("new"))
        assert ledger.purge(keep=["old but named"]) == 1
        assert set(ledger.read(["old", "old but named", "new"])) == {"old but named", "new"}
        assert ledger.purge(keep=["old but named"]) == 0

    async def test_the_oldest_go_first_where_the_ledger_is_too_large(self, ledger: Ledger) -> None:
        rng = random.Random(0)
        texts = [{"content": rng.randbytes(2000).hex()} for _ in range(3000)]
        rows = [changed(f"c{number}", 1e9 + number, message=text) for number, text in enumerate(texts)]
        late = [changed(f"late{number}", 1e8) for number in range(10)]  # the clock was set back
        await ledger.add(*rows)
        await ledger.add(*late)
        size = 3000 * 4000
        assert ledger.purge(keep=["c0"], days=1e5, most_bytes=size * 2) == 0
        deleted = ledger.purge(keep=["c0"], days=1e5, most_bytes=size // 2)
        assert 1000 <= deleted < 2900
        newest = {f"c{number}" for number in range(deleted + 1, 3000)}
        assert set(ledger.read([one.id for one in (*rows, *late)])) == {"c0", *newest, *(one.id for one in late)}

    async def test_answers_get_in_between_while_much_is_deleted(self, ledger: Ledger) -> None:
        await ledger.add(*(row(f"old {number}", OLD) for number in range(3000)))
        purge = asyncio.create_task(asyncio.to_thread(ledger.purge))
        added = 0
        while not purge.done():
            await ledger.add(row(f"new {added}"))
            added += 1
        assert await purge == 3000
        assert added >= 2
        assert len(ledger.read([f"new {number}" for number in range(added)])) == added

    async def test_it_lists_what_it_recorded_in_order(self, ledger: Any) -> None:
        assert isinstance(ledger, ListsCompletions)
        asked = {"messages": [{"role": "user", "content": "first"}, {"role": "user", "content": "say \ud83d it"}]}
        await ledger.add(*(changed(f"c{number}", rollout="r", request=asked) for number in range(3)))
        first = ledger.recorded(0, 2)
        assert [(one.rollout, one.policy, one.version, one.status, one.tokens) for one in first] == [
            ("r", "agent", 1, "complete", 2)
        ] * 2
        assert first[0].text.startswith("say ")
        assert len(ledger.recorded(first[-1].place, 10)) == 1

    async def test_a_completion_that_is_added_again_is_listed_again(self, ledger: Any) -> None:
        await ledger.add(row("a", 1.0))
        (first,) = ledger.recorded(0, 10)
        await ledger.add(changed("a", 1.0, version=2))
        assert [one.version for one in ledger.recorded(first.place, 10)] == [2]

    @pytest.mark.parametrize("way", ["erase", "purge"])
    async def test_the_place_of_a_deleted_completion_is_not_given_again(self, ledger: Any, way: str) -> None:
        """Whoever reads in the order of places would miss the completion that gets it."""
        await ledger.add(row("a", 1.0), row("b", 1.0))
        last = ledger.recorded(0, 10)[-1].place
        if way == "erase":
            ledger.erase(["b", "a"])
        else:
            ledger.purge()
        await ledger.add(row("c"))
        assert [one.place > last for one in ledger.recorded(last, 10)] == [True]

    async def test_what_is_erased_is_gone_while_others_read_and_write(self, ledger: Any) -> None:
        assert isinstance(ledger, ErasesCompletions)
        marked = [changed(f"m{number}", rollout=f"r{number}") for number in range(50)]
        for one in marked:
            await ledger.add(one, row(f"other {one.id}"))
        assert ledger.matching(rollouts=["r1", "r2"], completions=["m3", "unknown"]) == {
            "m1": "r1",
            "m2": "r2",
            "m3": "r3",
        }
        erased = asyncio.create_task(asyncio.to_thread(ledger.erase, [one.id for one in marked]))
        await asyncio.gather(*(ledger.add(row(f"later {number}")) for number in range(50)))
        assert await erased is True
        found = ledger.read([f"{kind}{number}" for number in range(50) for kind in ("other m", "later ", "m")])
        assert len(found) == 100
        assert ledger.matching(policy="agent").keys() == found.keys()

    async def test_who_follows_several_writers_misses_and_repeats_nothing(self, place: Place) -> None:
        reader, ended, seen = place.open(), threading.Event(), list[str | None]()

        def follow() -> None:
            at, more = 0, True
            while more:
                more = not ended.is_set()
                while new := reader.recorded(at, 20):
                    seen.extend(one.rollout for one in new)
                    at = new[-1].place

        following = asyncio.create_task(asyncio.to_thread(follow))
        ids = [f"w{writer} {number}" for writer in range(3) for number in range(200)]
        writers = [place.open() for _ in range(3)]

        async def write(writer: int) -> None:
            for number in range(0, 200, 5):
                names = [f"w{writer} {number + more}" for more in range(5)]
                await asyncio.gather(*(writers[writer].add(changed(name, rollout=name)) for name in names))

        await asyncio.gather(*map(write, range(3)))
        ended.set()
        await following
        assert sorted(map(str, seen)) == sorted(ids)
        assert len(reader.read(ids)) == 600
        place.close()

    def test_a_kill_loses_nothing_that_was_acknowledged(self, place: Place) -> None:
        with Writing(place) as kill:
            acknowledged = kill(70)
        found = place.open().read([f"c{number}" for number in range(acknowledged)])
        assert len(found) == acknowledged
        place.close()


_WRITER = """
import asyncio, os, pathlib, sys
from tests.support.homes.ledger_rows import row
from trainer_server.ledger.registry import open_ledger
from trainer_server.common import Home

async def main():
    ledger = open_ledger(os.environ["ART_LEDGER"], Home(pathlib.Path(sys.argv[1])))
    number = 0
    while True:
        await asyncio.gather(*(ledger.add(row(f"c{number + i}")) for i in range(7)))
        number += 7
        print(number, flush=True)

asyncio.run(main())
"""


class Writing:
    """A process that adds completions `c0`, `c1`, … to a ledger until it is killed."""

    def __init__(self, place: Place) -> None:
        line = [sys.executable, "-c", _WRITER, str(place.home)]
        variables = {**os.environ, "ART_LEDGER": place.name}
        self._process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=variables)

    def __enter__(self) -> Callable[[int], int]:
        return self._kill

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def _kill(self, after: int) -> int:
        """Kills it once so many completions are acknowledged; returns how many were in the end."""
        assert self._process.stdout is not None
        acknowledged = 0
        for line in self._process.stdout:
            acknowledged = int(line)
            if acknowledged >= after:
                break
        os.kill(self._process.pid, signal.SIGKILL)
        return max([acknowledged, *(int(line) for line in self._process.stdout.read().split())])

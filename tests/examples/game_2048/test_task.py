"""game_2048: how a game goes and is scored, and that two steps train it."""

from __future__ import annotations

from typing import Any

import pytest
from art_examples.game_2048.agent import MAX_MOVES, SYSTEM, TARGET, build_graph, move_of
from art_examples.game_2048.board import MOVES, possible, show
from art_examples.game_2048.task import SHOWN_MOVES, demonstration, game_2048, good, parts, scenario
from langchain_core.messages import AIMessage

from art_langgraph import Trajectory
from tests.support.runs.tasks import Scripted, learned_in_two_steps, run
from tests.support.servers.trainer_server import TrainerServer


class FirstMove(Scripted):
    """Makes the first of the moves that are possible."""

    answers: list[str] = []  # noqa: RUF012 - a field of a pydantic model

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        self.answers = [messages[-1].content.splitlines()[-1].split()[0]]
        return super()._generate(messages, *args, **kwargs)


async def test_a_game_is_one_conversation_that_goes_on_until_it_ends() -> None:
    model = FirstMove()
    async with game_2048(0) as task:
        made = await run(task, task.held_out[0], model)
    state = made.output
    assert state["over"]
    assert state["moves"] == MAX_MOVES or not possible(state["rows"]) or max(map(max, state["rows"])) >= TARGET
    assert state["moves"] > 10
    assert [len(asked) for asked in model.asked] == [2 * at for at in range(1, state["moves"] + 1)]
    assert model.asked[0][0] == {"role": "system", "content": SYSTEM}
    assert made.reward is not None
    assert 0.2 < made.reward <= 1


def test_good_moves_merge_and_bring_the_largest_tile_into_the_corner() -> None:
    assert good(((4, 2, 2), (0, 0, 0), (0, 0, 0))) == "left"
    assert good(((2, 4, 0), (2, 0, 0), (0, 0, 0))) == "up"
    shown = demonstration("a").messages
    assert [message["role"] for message in shown] == ["system", *["user", "assistant"] * SHOWN_MOVES]
    assert all(said["content"] in asked["content"] for asked, said in zip(shown[1::2], shown[2::2], strict=True))


@pytest.mark.parametrize(
    ("said", "move"), [("left", "left"), (" Up.\n", "up"), ("", ""), ("north", ""), ("left or up", "")]
)
def test_the_move_of_an_answer(said: str, move: str) -> None:
    assert move_of(AIMessage(said)) == move


async def test_an_answer_that_is_no_move_ends_the_game() -> None:
    state = await build_graph(Scripted(answers=["wait"])).ainvoke({"seed": "a"})
    assert (state["over"], state["moves"], state["points"]) == (True, 0, 0)
    assert parts(Trajectory(scenario=scenario("a"), output=state)) == {"moves": 0.0, "points": 0.0, "success": 0.0}


def test_a_game_that_is_won_early_has_the_whole_reward() -> None:
    state = {"rows": ((TARGET, 0, 0), (0, 0, 0), (0, 0, 0)), "moves": 15, "points": 100}
    assert parts(Trajectory(scenario=scenario("a"), output=state)) == {"moves": 1.0, "points": 1.0, "success": 1.0}
    state = {"rows": ((16, 0, 0), (0, 0, 0), (0, 0, 0)), "moves": 12, "points": 40}
    assert parts(Trajectory(scenario=scenario("a"), output=state)) == {"moves": 0.5, "points": 0.25, "success": 0.0}


def test_a_demonstration_is_made_of_possible_moves() -> None:
    shown = [message["content"] for message in demonstration("a").messages]
    assert shown[0] == SYSTEM
    assert len(shown) == 17
    for board, move in zip(shown[1::2], shown[2::2], strict=True):
        *rows, moves = board.splitlines()
        assert move in moves.split()
        tiles = tuple(tuple(int(tile) if tile != "." else 0 for tile in row.split()) for row in rows)
        assert show(tiles) == board


async def test_held_out_games_have_seeds_of_their_own() -> None:
    async with game_2048(0) as first, game_2048(1) as second:
        seeds = [{one.input["seed"] for one in scenarios} for scenarios in
                 (first.held_out, first.training, second.training)]  # fmt: skip
        assert [one.id for one in first.held_out] == [one.id for one in second.held_out]
    assert not seeds[0] & (seeds[1] | seeds[2])
    assert not seeds[1] & seeds[2]


@pytest.mark.slow
async def test_two_steps_train_it(connected: TrainerServer) -> None:
    learned = await learned_in_two_steps(game_2048, "game-2048", connected, MOVES)
    assert len(learned.rewards) == 2
    assert learned.skipped < 2
    assert learned.tokens["training"] > 0
    assert learned.after is not None
    assert learned.after.n == 4

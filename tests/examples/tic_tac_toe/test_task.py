"""tic_tac_toe: how games are played and scored, and that two steps train it, also in self-play."""

from __future__ import annotations

import random

import pytest
from art_examples.tic_tac_toe.agent import SYSTEM, build_graph
from art_examples.tic_tac_toe.board import EMPTY, ended, free
from art_examples.tic_tac_toe.task import demonstration, parts, scenario, self_play, tic_tac_toe

from art_langgraph import Trajectory
from tests.support.runs.tasks import Scripted, learned_in_two_steps, run
from tests.support.servers.trainer_server import TrainerServer


async def test_a_game_is_played_move_by_move() -> None:
    """The opponent takes squares that this seed gives; the agent fills the row that is left."""
    model = Scripted(answers=["5", "1", "9", "2", "8", "3", "4", "6", "7"])
    async with tic_tac_toe(0) as task:
        made = await run(task, scenario("held-out-0", 0), model)
    assert model.asked[0] == [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "1 2 3\n4 5 6\n7 8 9"},
    ]
    assert "X" in model.asked[1][1]["content"]
    assert "O" in model.asked[1][1]["content"]
    assert made.output["ended"] in ("won", "lost", "draw", "illegal")


@pytest.mark.parametrize(
    ("moves", "how", "expected"),
    [
        (3, "won", {"legal": 1.0, "score": 1.0, "success": 1.0}),
        (5, "draw", {"legal": 1.0, "score": 0.5, "success": 0.0}),
        (3, "lost", {"legal": 1.0, "score": 0.0, "success": 0.0}),
        (3, "illegal", {"legal": 0.75, "score": 0.0, "success": 0.0}),
        (0, "illegal", {"legal": 0.0, "score": 0.0, "success": 0.0}),
    ],
)
def test_the_parts_of_the_reward(moves: int, how: str, expected: dict[str, float]) -> None:
    state = {"board": EMPTY, "seed": "a", "ended": how} | ({"moves": moves} if moves else {})
    assert parts(Trajectory(scenario=scenario("a", 0), output=state)) == expected


@pytest.mark.parametrize("said", ["", "X", "10", "the middle", "5 or 6"])
async def test_what_names_no_free_square_ends_the_game(said: str) -> None:
    async with tic_tac_toe(0) as task:
        made = await run(task, task.training[0], Scripted(answers=[said]))
    assert made.output["ended"] == "illegal"
    assert made.reward == 0.0


async def test_an_opponent_sees_the_board_as_its_own_and_its_illegal_moves_are_replaced() -> None:
    opponent = Scripted(answers=["9", "nothing"])
    player = Scripted(answers=["5", "1", "2"])
    state = await build_graph(player, opponent).ainvoke({"board": EMPTY, "seed": "a"})
    assert opponent.asked[0][1]["content"] == "1 2 3\n4 O 6\n7 8 9"
    assert player.asked[1][1]["content"] == "1 2 3\n4 X 6\n7 8 O"
    assert len(opponent.asked) >= 2
    assert state["ended"]


def test_demonstrations_are_legal_moves_of_boards_on_which_x_is_to_move() -> None:
    rng = random.Random(0)
    for _ in range(200):
        system, shown, answer = (message["content"] for message in demonstration(rng).messages)
        board = shown.replace(" ", "").replace("\n", "")
        assert system == SYSTEM
        assert answer in free(board)
        assert not ended(board)
        assert board.count("O") - board.count("X") in (0, 1)


async def test_games_that_are_held_out_have_seeds_of_their_own() -> None:
    async with tic_tac_toe(0) as first, tic_tac_toe(1) as second:
        held_out = {one.input["seed"] for one in first.held_out}
        assert held_out == {one.input["seed"] for one in second.held_out}
        trained = [{one.input["seed"] for one in task.training} for task in (first, second)]
        assert held_out.isdisjoint(trained[0] | trained[1])
        assert trained[0].isdisjoint(trained[1])
        begun = [one.input["board"] for one in first.held_out]
        assert begun.count(EMPTY) == len(begun) // 2


@pytest.mark.slow
@pytest.mark.parametrize("maker", [tic_tac_toe, self_play])
async def test_two_steps_train_it(maker: object, connected: TrainerServer) -> None:
    name = maker.__name__.replace("_", "-")  # type: ignore[attr-defined]
    learned = await learned_in_two_steps(maker, name, connected, list(EMPTY))  # type: ignore[arg-type]
    assert len(learned.rewards) == 2
    assert learned.skipped < 2
    assert learned.tokens["training"] > 0
    for evaluation in (learned.before, learned.prompted, learned.warm, learned.after):
        assert evaluation is not None
        assert evaluation.n == 4

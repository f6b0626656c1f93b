"""Deduction puzzles: each has one solution, and no clue too many."""

from __future__ import annotations

import random

from art_examples.temporal_clue.puzzles import ROOMS, TIMES, Clue, World, all_clues, make, solutions, worlds

PEOPLE = ("Ann", "Ben", "Carl")


def test_a_puzzle_has_one_solution_and_every_clue_is_needed() -> None:
    rng = random.Random(0)
    for _ in range(100):
        puzzle = make(PEOPLE, rng)
        solution = (TIMES.index(puzzle.when), puzzle.where, PEOPLE.index(puzzle.who))
        assert solutions(puzzle.clues) == {solution}
        for clue in puzzle.clues:
            assert len(solutions([other for other in puzzle.clues if other != clue])) > 1


def test_a_puzzle_that_states_all_facts_has_one_solution_too() -> None:
    for seed in range(20):
        puzzle = make(PEOPLE, random.Random(seed), stated=True)
        solution = (TIMES.index(puzzle.when), puzzle.where, PEOPLE.index(puzzle.who))
        assert solutions(puzzle.clues) == {solution}
        assert f"The crime was in the {puzzle.where}." in puzzle.text
        assert f"{puzzle.who} was in the {puzzle.where} at {puzzle.when}." in puzzle.text
        assert len(puzzle.clues) == 2 + len(TIMES) * len(PEOPLE)


def test_solutions_are_those_of_trying_all_worlds() -> None:
    rng = random.Random(1)
    for _ in range(30):
        clues = rng.sample(all_clues(), 3)
        allowed = [world for world in worlds() if all(clue.allows(world) for clue in clues)]
        assert solutions(clues) == {(world.time, world.room, world.culprit) for world in allowed}
    assert len(solutions([])) == len(TIMES) * len(ROOMS) * len(PEOPLE)


def test_clues_in_words() -> None:
    world = World((("hall", "kitchen", "study"), ("study", "hall", "kitchen")), 1, "hall")
    said = [clue.text(PEOPLE) for clue in all_clues() if clue.allows(world)]
    assert "The crime was at night." in said
    assert "The crime was not in the study." in said
    assert "Ann was in the hall at noon." in said
    assert "Carl was not in the hall at night." in said
    assert PEOPLE[world.culprit] == "Ben"
    assert len(said) == len(all_clues()) // 2
    assert Clue(True, time=0).allows(world) is False

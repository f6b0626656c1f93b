"""The base model writes the requests for plans that were executed: what is kept, what is not, and how it ends."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

import pytest

from art_langgraph.llm.trainer_model import POLICY
from art_mcp import MCPScenario, connect, generate_scenarios
from art_mcp.scenarios.catalog import CatalogTool
from art_mcp.scenarios.plan import Observation, Plan, Step
from art_mcp.scenarios.writing import wordings
from art_mcp.scenarios.writing.manners import HELD_OUT, MANNERS
from art_mcp.scenarios.writing.reading import Reader
from art_mcp.scenarios.writing.requests import GAP, Unusable, check_request
from tests.support.mcp.base_model import CHAIN, BaseModel, price, writer
from tests.support.mcp.commands import SHELF, SHOP
from tests.support.patience import PATIENCE
from tests.support.servers.judge_app import Fault
from tests.support.servers.trainer_server import TrainerServer


async def test_requests_that_are_read_back_as_the_plan_replace_the_grammars() -> None:
    """One gives its answer away, one drops a value, and one is read otherwise: these stay as they are."""

    def write(values: list[str]) -> str:
        (value,) = values
        return {"it-3": "Is it-3 still at 1003?", "it-4": "How expensive is the fourth one?"}.get(
            value, f"we talked about {value} yesterday. how much do they want for it"
        )

    model = BaseModel(write, calls={"it-5": [("get_price", {"item_id": "it-6"})]})
    scenarios = [price(number) for number in range(1, 13)]
    finals: list[int] = []
    with writer(model) as (words, at):
        note = await words.write(scenarios, 0, finals.append)
    by_item = {scenario.plan.reference[0].arguments["item_id"]: scenario for scenario in scenarios}
    for number in range(1, 13):
        scenario, before = by_item[f"it-{number}"], price(number)
        if number in (3, 4, 5):
            assert scenario == before
            continue
        assert scenario.task == f"we talked about it-{number} yesterday. how much do they want for it"
        assert scenario.id != before.id
        name, manner = scenario.plan.phrasing.split()
        assert (name, manner in MANNERS) == ("base", True)
        assert scenario.plan == before.plan.model_copy(update={"phrasing": scenario.plan.phrasing})
    assert note.startswith("written by base and read back: 9 of 12 requests; the grammar wrote the others (")
    for reason in ("a value is missing: 1", "the answer, or what a call must find, is given away: 1"):
        assert reason in note
    assert "read back, other calls are made: 1" in note
    assert finals == sorted(finals)
    # 12 requests, two of which are asked for again; ten are read: a call and an answer each, or the wrong call alone.
    assert len(at.requests) == 12 + 2 + 9 * 2 + 1
    assert all("1003" not in prompt for prompt in model.prompts), "it does not see the answer"
    assert f"The answer: The price of it-3 is {GAP}." in next(prompt for prompt in model.prompts if "it-3" in prompt)


async def test_a_model_that_is_not_capable_leaves_all_to_the_grammar() -> None:
    model = BaseModel(lambda values: f"{values[0]}?" if values[0] in ("it-1", "it-2") else "Hello, how are you?")
    scenarios = [price(number) for number in range(1, 31)]
    before = {scenario.id for scenario in scenarios}
    finals: list[int] = []
    probes = scenarios[:2] + scenarios[2:10]
    with writer(model) as (words, at):
        note = await words.write(probes, 0, finals.append)
        assert "wrote 2 of 10 requests that could be read back: the grammar writes" in note
        note = await words.write(scenarios, 0, finals.append)
    assert note.startswith("the base model base wrote ")
    assert "of 10 requests that could be read back: the grammar writes (a value is missing: " in note
    assert {scenario.id for scenario in scenarios} == before
    assert finals == []
    assert len(at.requests) <= 2 * 10 * 2 + 4, "ten are tried, and no more"


async def test_a_fault_is_told_once_and_may_be_mended() -> None:
    turns = iter(["It costs 1007?", "What about it-7?"])
    model = BaseModel(lambda values: next(turns))
    scenarios = [price(7)]
    with writer(model) as (words, at):
        assert (await words.write(scenarios, 0, lambda count: None)).startswith("written by base and read back: 1 of 1")
    assert scenarios[0].task == "What about it-7?"
    assert "a value is missing: 'it-7'" in at.requests[1]["messages"][-1]["content"]


async def test_held_out_phrasings_have_manners_of_their_own() -> None:
    scenarios = [price(number, split="phrasings" if number % 3 == 0 else "train") for number in range(24)]
    with writer(BaseModel()) as (words, _):
        await words.write(scenarios, 0, lambda count: None)
    forms = {split: {s.plan.phrasing for s in scenarios if s.plan.split == split} for split in ("train", "phrasings")}
    assert len(forms["phrasings"]) == HELD_OUT
    assert not forms["phrasings"] & forms["train"]
    assert {scenario.plan.split for scenario in scenarios[:8]} == {"phrasings"}, "they come first"


async def test_small_talk_stays_and_follow_ups_go_on() -> None:
    talk = MCPScenario.make("Thanks!", Plan(kind="talk", reply="talk", answer="You are welcome."))
    plan = price(8, kind="follow_up").plan
    later = MCPScenario.make("And it-8?", plan, [("What does it-7 cost?", "It is 1007.")])
    scenarios = [talk, later]
    model = BaseModel(lambda values: f"ok, same for {values[0]}")
    with writer(model) as (words, _):
        await words.write(scenarios, 0, lambda count: None)
    first, second = sorted(scenarios, key=lambda scenario: scenario.plan.kind)
    assert second == talk
    assert [message["content"] for message in first.messages] == [
        "What does it-7 cost?", "It is 1007.", "ok, same for it-8",
    ]  # fmt: skip
    assert "Said before:\nuser: What does it-7 cost?\nassistant: It is 1007." in model.prompts[0]


async def test_a_chain_is_read_with_the_results_that_its_calls_gave() -> None:
    model = BaseModel(lambda values: f"i want the {values[0]}. how much")
    scenarios = [CHAIN]
    with writer(model) as (words, at):
        await words.write(scenarios, 0, lambda count: None)
    assert scenarios[0].task == "i want the lamp. how much"
    assert 'beside {"name":"lamp"}' in model.prompts[0]
    assert 'must be in the message: ["lamp"]' in model.prompts[0], "the entry that it asks about"
    results = [message["content"] for message in at.requests[-1]["messages"] if message["role"] == "tool"]
    assert results == [observation.text for observation in CHAIN.plan.observations]


async def test_another_look_up_that_finds_the_value_is_right_too() -> None:
    """Which one it is does not matter; the acting call, and what the answer tells, do."""
    text = "How much is the lamp?"
    scenario = MCPScenario.make(text, CHAIN.plan)
    look = CatalogTool(name="get_clock", annotations={"readOnlyHint": True})
    model = BaseModel(plans={text: [("get_clock", {}), ("get_price", {"item_id": "it-77"})]})
    async with connect(SHOP) as server:
        with writer(model) as (words, _):
            reader = Reader(words.model, server, [look])
            assert await reader.disagreement(scenario) is None
            model.plans[text] = [("get_clock", {}), ("get_price", {"item_id": "it-88"})]
            assert await reader.disagreement(scenario) == "other calls are made"
            model.plans[text] = [("get_clock", {})] * 3
            assert await reader.disagreement(scenario) == "other calls are made", "more look-ups than a run may make"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("How much is it-77, the lamp?", "is given away"),
        ("How much is the first one?", "a value is missing"),
        ("Call get_price for the lamp.", "a tool is named"),
        (CHAIN.task, "nothing new is written"),
        ("The lamp, is it 20?", "is given away"),
    ],
)
def test_what_no_request_may_be(text: str, kind: str) -> None:
    with pytest.raises(Unusable, match=kind):
        check_request(CHAIN, text)


def test_values_count_letter_by_letter_and_as_whole_words() -> None:
    for text in ("What does IT-7 cost?", "What does it-77 cost?", "What does bit-7 cost?"):
        with pytest.raises(Unusable, match="a value is missing"):
            check_request(price(7), text)
    check_request(price(7), "(it-7's price?)")
    default = price(7).with_plan(reference=[Step(tool="get_price", arguments={"n": 5}, defaults={"n": 5})])
    check_request(default, "How much for it-7?")


async def test_a_reader_may_look_and_finds_the_same_by_another_call() -> None:
    """A call that only reads and that the plan does not have is executed; one that the server refuses ends it."""
    query = Step(tool="convert_price", arguments={"amount": 20, "currency": "yen"}, reads=True, by_result=True)
    plan = Plan(reference=[query], observations=[Observation(text="3200", structured={"result": 3200})], facts=["3200"])
    scenario = MCPScenario.make("What is that in yen?", plan)
    convert = CatalogTool(name="convert_price", description="Converts.", annotations={"readOnlyHint": True})
    writes = CatalogTool(name="add_note", annotations={"readOnlyHint": False})
    model = BaseModel(plans={"What is that in yen?": [("get_clock", {}), ("convert_price", {"amount": 20})]})
    async with connect(SHOP) as server:
        with writer(model) as (words, _):
            clock = CatalogTool(name="get_clock", annotations={"readOnlyHint": True})
            reader = Reader(words.model, server, [convert, writes, clock])
            assert await reader.disagreement(scenario) is None
            model.plans["What is that in yen?"] = [("convert_price", {"amount": 21})]
            assert await reader.disagreement(scenario) == "calls are missing"
            model.plans["What is that in yen?"] = [("add_note", {"text": "x"})]
            assert await reader.disagreement(scenario) == "other calls are made"
            model.plans["What is that in yen?"] = []
            assert await reader.disagreement(scenario) == "calls are missing"


@pytest.mark.slow
async def test_it_ends_with_the_time_and_keeps_what_there_is() -> None:
    model = BaseModel()

    def slow(body: dict[str, Any]) -> str | Fault:
        return Fault(sleep=PATIENCE) if "it-21" in str(body) else model(body)

    scenarios = [price(number) for number in range(11, 22)]
    begin = time.monotonic()
    with writer(slow, seconds=10.0) as (words, at):
        note = await words.write(scenarios, 0, lambda count: None)
        assert time.monotonic() - begin < PATIENCE
        assert "read back: 10 of 11 requests; the grammar wrote the others (the time was over: 1)" in note
        while not at.dropped:
            await asyncio.sleep(0.02)
    assert price(21) in scenarios


async def test_a_model_that_is_too_slow_leaves_all_to_the_grammar() -> None:
    scenarios = [price(number) for number in range(20)]
    with writer(lambda body: Fault(sleep=PATIENCE), seconds=1.0) as (words, at):
        note = await words.write(scenarios, 0, lambda count: None)
        while at.dropped < len(at.requests):
            await asyncio.sleep(0.02)
    assert "wrote 0 of 10 requests that could be read back: the grammar writes (the time was over: 10)" in note


async def test_cancellation_takes_the_requests_back() -> None:
    with writer(lambda body: Fault(sleep=PATIENCE)) as (words, at):
        task = asyncio.create_task(words.write([price(number) for number in range(30)], 0, lambda count: None))
        while len(at.requests) < wordings.PROBES:
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while at.dropped < wordings.PROBES:
            await asyncio.sleep(0.02)
    assert len(at.requests) == wordings.PROBES


async def test_a_server_that_is_gone_is_given_up() -> None:
    model = BaseModel()
    scenarios = [price(number) for number in range(60)]

    def dies(body: dict[str, Any]) -> str | Fault:
        return model(body) if len(model.prompts) < wordings.PROBES + 1 or "tools" in body else Fault(401, "no more")

    with writer(dies) as (words, at):
        note = await words.write(scenarios, 0, lambda count: None)
    assert re.search(r"read back: 11 of 60 .*the model was not asked any more: \d+.*no more", note)
    assert len(at.requests) <= 11 * 3 + wordings.FAILURES + wordings.AT_ONCE
    assert at.most_at_once <= wordings.AT_ONCE


async def test_an_answer_that_is_cut_off_is_no_silence() -> None:
    """A small model goes on until its limit now and then: it was there, and that is what the note says."""
    cut = {"index": 0, "message": {"role": "assistant", "content": '{"text": "I'}, "finish_reason": "length"}
    answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "base", "choices": [cut]}
    with writer(lambda body: Fault(body=json.dumps(answer).encode())) as (words, _):
        note = await words.write([price(number) for number in range(3)], 0, lambda count: None)
    assert "the answer could not be parsed: 3" in note
    assert "raise max_tokens" in note
    assert "the model gave no answer" not in note


@pytest.mark.slow
async def test_generation_hands_over_plans_and_tells_each_scenario_once() -> None:
    model, final = BaseModel(lambda values: f"about {' and '.join(values) or 'that'}, please"), []
    with writer(model) as (words, _):
        async with connect(SHOP) as server:
            made = await generate_scenarios(
                server, 24, model=words.model, seconds=40, on_kept=final.append, progress=False
            )
    assert final == made.scenarios
    assert len(made) == 24
    texts = [scenario for scenario in made.scenarios if scenario.plan.phrasing.startswith("base ")]
    (note,) = (note for note in made.notes if note.startswith("written by base and read back: "))
    assert f"{len(texts)} of 24 requests" in note
    assert texts
    assert all(scenario.task.startswith("about ") for scenario in texts)
    assert all(scenario.plan.executed for scenario in texts)
    held = {scenario.plan.phrasing for scenario in made.held_out_sets["phrasings"]}
    assert not held & {scenario.plan.phrasing for scenario in made.train}


@pytest.mark.slow
async def test_a_base_model_that_cannot_is_found_through_the_trainer_server_and_said(connected: TrainerServer) -> None:
    async with connect(SHELF) as server:  # a clock's answers differ, and so would the scenarios
        plain = await generate_scenarios(server, 12, progress=False)
        made = await generate_scenarios(server, 12, model=POLICY, paraphrase=None, progress=False)
    assert {scenario.task for scenario in made.scenarios} == {scenario.task for scenario in plain.scenarios}
    (note,) = (note for note in made.notes if note.startswith("the base model base wrote 0 of "))
    assert "requests that could be read back: the grammar writes (" in note
    assert connected.engine["requests"][-1]["model"] == "base"

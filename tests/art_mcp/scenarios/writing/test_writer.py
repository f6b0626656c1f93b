"""Scenarios written by a model: held to the catalog, executed, topped up until there are enough."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from art_langgraph import LLM, LLMError
from art_mcp import Catalog, generate_scenarios
from art_mcp.scenarios.writing.proposals import Proposal, unfit, unsaid
from tests.support.mcp.commands import SHELF
from tests.support.mcp.shelf_server import BOOKS
from tests.support.runs.chat_models import Answering
from tests.support.servers.judge_app import Endpoint, Fault, endpoint
from tests.support.servers.serving import serving

pytestmark = pytest.mark.slow

ZONE = Catalog.of_tools(
    [
        {
            "name": "convert",
            "inputSchema": {
                "type": "object",
                "properties": {"zone": {"enum": ["Oslo", "Rome"]}, "hour": {"type": "integer"}},
                "required": ["zone"],
            },
            "description": "Converts an hour to the zone.",
        },
        {"name": "anything", "inputSchema": {"type": "object", "additionalProperties": True}},
    ]
)


def writer(at: Endpoint, **options: Any) -> LLM:
    return LLM("writer", base_url=at.url, backoff=0.01, retries=1, cache=None, **options)


def proposal(
    task: str, *calls: tuple[str, dict[str, Any]], difficulty: int = 1, asks: tuple[tuple[int, str], ...] = ()
) -> dict[str, Any]:
    listed = [{"tool": tool, "arguments": arguments} for tool, arguments in calls]
    asked = [{"call": call, "path": [key]} for call, key in asks]
    return {"task": task, "difficulty": difficulty, "calls": listed, "asks": asked}


def answer(*proposals: dict[str, Any]) -> str:
    return json.dumps({"scenarios": proposals})


def pages_of(book: str) -> dict[str, Any]:
    return proposal(f"How many pages does {book} have?", ("get_volume", {"book_id": book}), asks=((0, "pages"),))


def good_ones(per_answer: int = 6) -> Any:
    books = itertools.cycle(BOOKS)
    return lambda body: answer(*(pages_of(next(books)) for _ in range(per_answer)))


async def test_a_langchain_chat_model_writes_scenarios() -> None:
    model = Answering(says=answer(proposal("What is noon in Oslo?", ("convert", {"zone": "Oslo", "hour": 12}))))
    found = await generate_scenarios(ZONE, 1, model=model, held_out=0, progress=False)
    assert [one.task for one in found.scenarios] == ["What is noon in Oslo?"]


async def test_proposals_are_executed_and_become_scenarios() -> None:
    chain = proposal(
        "How long is the first atlas on the shelf?",
        ("list_volumes", {"genre": "atlas"}),
        ("get_volume", {"book_id": {"$step": 0, "path": ["books", 0, "id"]}}),
        difficulty=3,
        asks=((1, "pages"),),
    )
    with endpoint(answer(chain, pages_of("b107"), pages_of("b114"))) as at:
        model = writer(at)
        found = await generate_scenarios(SHELF, 3, model=model, seed=1, progress=False)
    assert {one.task for one in found.scenarios} == {chain["task"], pages_of("b107")["task"], pages_of("b114")["task"]}
    by_task = {one.task: one.plan for one in found.scenarios}
    assert by_task[chain["task"]].facts == ["90"], "what the task asks for, and nothing else"
    assert by_task[chain["task"]].kind == "chain"
    assert by_task[chain["task"]].difficulty == 3
    assert by_task[pages_of("b107")["task"]].origin == "writer"
    assert by_task[pages_of("b107")["task"]].facts == ["103"]
    assert found.coverage["get_volume"] == 3
    assert model.usage.calls == len(at.requests) == 1
    assert any("written by writer in 1 round: 1 calls (0 retries" in note for note in found.notes)


async def test_the_writer_is_shown_the_catalog_and_what_the_server_answered() -> None:
    with endpoint(good_ones()) as at:
        await generate_scenarios(
            SHELF, 2, model=writer(at), difficulty=(1, 4), instructions="Only short books.", progress=False,
            resources={"book_id": ["b100"]},
        )  # fmt: skip
    prompt = at.requests[0]["messages"][1]["content"]
    for part in ("between 1 and 4", "Only short books.", '"list_volumes"', '"enum":["novel","atlas"]', "b100"):
        assert part in prompt
    assert "delete_volume" not in prompt  # it may destroy something
    assert "Results that were seen" in prompt
    assert "Title 1" in prompt


async def test_what_fails_is_dropped_with_the_reason_and_the_writer_is_asked_for_more() -> None:
    first = answer(
        pages_of("b100"),
        pages_of("b100"),
        pages_of("b999"),
        proposal("Which ones?", ("list_volumes", {"genre": "poem"})),
        proposal("Open it.", ("open_volume", {})),
        proposal("Throw b100 away.", ("delete_volume", {"book_id": "b100"})),
        proposal("Too hard.", ("get_volume", {"book_id": "b100"}), difficulty=5),
    )
    with endpoint(first, first, good_ones()) as at:
        found = await generate_scenarios(SHELF, 4, model=writer(at), difficulty=(1, 3), progress=False)
    assert len(found) == 4
    reasons = {(one.kind, one.reason) for one in found.dropped}
    kinds = {kind for kind, _ in reasons}
    assert {"invalid", "error", "duplicate"} <= kinds
    text = str(reasons)
    for part in (
        "no book b999",
        "'poem' is not one of",
        "no tool 'open_volume'",
        "no tool 'delete_volume' that may be called",
        "difficulty 5",
    ):
        assert part in text
    last = at.requests[-1]["messages"][1]["content"]
    assert "There are already, so write others" in last
    assert "These failed" in last
    assert "no book b999" in last


async def test_no_scenario_is_kept_twice_over_rounds() -> None:
    with endpoint(answer(pages_of("b100"), pages_of("b107"))) as at:
        found = await generate_scenarios(SHELF, 5, model=writer(at), rounds=3, progress=False)
    assert len(found) == 2
    assert any("2 of 5 scenarios: 3 rounds are over" in note for note in found.notes)


async def test_a_budget_ends_the_writing_and_says_so() -> None:
    with endpoint(answer(pages_of("b100"))) as at:
        model = LLM("openai/gpt-4o-mini", base_url=at.url, cache=None)
        found = await generate_scenarios(SHELF, 5, model=model, rounds=50, budget=1e-4, progress=False)
    assert model.usage.cost is not None
    assert 1e-4 <= model.usage.cost < 2e-4
    assert any("the budget of 0.0001 USD is spent" in note for note in found.notes)


async def test_a_writer_that_fails_from_the_start_fails_loudly() -> None:
    with endpoint(Fault(401, "bad key")) as at, pytest.raises(LLMError, match="bad key"):
        await generate_scenarios(SHELF, 2, model=writer(at), progress=False)


async def test_a_writer_that_fails_later_keeps_what_there_is() -> None:
    with endpoint(answer(pages_of("b100")), Fault(402, "pay first")) as at:
        found = await generate_scenarios(SHELF, 2, model=writer(at), progress=False)
    assert len(found) == 1
    assert any("pay first" in note for note in found.notes)


async def test_an_answer_in_which_nothing_fits_is_asked_for_again() -> None:
    nothing = answer(proposal("Open it.", ("open_volume", {})))
    with endpoint(nothing, answer(pages_of("b100"))) as at:
        found = await generate_scenarios(SHELF, 1, model=writer(at), progress=False)
    assert len(found) == 1
    assert "there is no tool 'open_volume'" in at.requests[1]["messages"][-1]["content"]


async def test_a_large_catalog_is_shown_in_parts() -> None:
    tools = [{"name": f"get_{at}", "description": "x" * 2_000, "inputSchema": {"type": "object"}} for at in range(30)]

    def any_tool(body: dict[str, Any]) -> str:
        name = next(tool["name"] for tool in tools if f'"{tool["name"]}"' in body["messages"][1]["content"])
        return answer(proposal(f"Please use {name}.", (str(name), {})))

    with endpoint(any_tool) as at:
        found = await generate_scenarios(Catalog.of_tools(tools), 12, model=writer(at), rounds=1, progress=False)
    assert len({one["messages"][1]["content"] for one in at.requests}) == len(at.requests) == 3
    assert len(found) == 3
    assert max(len(one["messages"][1]["content"]) for one in at.requests) < 30_000


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        ([("convert", {"zone": "Oslo", "hour": 3})], None),
        ([("convert", {"zone": "Oslo"}), ("convert", {"zone": {"$step": 0, "path": []}})], None),
        ([("anything", {"at": "All"})], None),
        ([("convert", {"hour": 3})], "'zone' is a required property"),
        ([("convert", {"zone": "Paris"})], "'Paris' is not one of"),
        ([("convert", {"zone": "Oslo", "hour": "three"})], "is not of type 'integer'"),
        ([("convert", {"zone": "Oslo", "speed": 1})], "no argument 'speed'"),
        ([("convert", {"zone": {"$step": 0, "path": []}})], "the number of an earlier call"),
        ([("convert", {"zone": {"$step": "0", "path": []}})], "the number of an earlier call"),
        ([("invent", {})], "no tool 'invent'"),
    ],
)  # fmt: skip
def test_proposals_are_held_to_the_schemas(calls: list[tuple[str, dict[str, Any]]], why: str | None) -> None:
    found = unfit(Proposal.model_validate(proposal("Oslo or Paris? All of them.", *calls)), ZONE.tools, (1, 5))
    assert (found is None) if why is None else (found is not None and why in found)


@pytest.mark.parametrize(
    ("task", "arguments", "why"),
    [
        ("Which price has it-7?", {"item": "it-7"}, None),
        ("Which price has that lamp?", {"item": "it-7"}, "does not say 'it-7'"),
        ("How many are there?", {"item": "select count(*) from all items"}, None),
    ],
)
def test_a_task_says_what_its_calls_need(task: str, arguments: dict[str, Any], why: str | None) -> None:
    found = unsaid(Proposal.model_validate(proposal(task, ("get", arguments))), task)
    assert (found is None) if why is None else (found is not None and why in found)


async def test_a_task_that_asks_for_too_much_or_for_nothing_is_dropped() -> None:
    bad = [
        proposal("Read out the atlas list.", ("list_volumes", {"genre": "atlas"}), asks=((0, "books"),)),
        proposal("Which town has the novel list?", ("list_volumes", {"genre": "novel"}), asks=((0, "town"),)),
    ]
    with endpoint(answer(*bad, pages_of("b100"))) as at:
        found = await generate_scenarios(SHELF, 3, model=writer(at), rounds=1, held_out=0, progress=False)
    assert [one.task for one in found.scenarios] == [pages_of("b100")["task"]]
    assert {one.reason.partition(":")[0] for one in found.dropped} >= {"call 1 gave nothing at ['town']"}
    assert any(one.reason.startswith("the task asks for ") for one in found.dropped)


async def test_follow_ups_refusals_and_talk_are_proposed_and_checked_too() -> None:
    earlier = {key: pages_of("b100")[key] for key in ("task", "calls", "asks")}
    follow_up = proposal("And b107?", ("get_volume", {"book_id": "b107"}), asks=((0, "pages"),)) | {"earlier": earlier}
    lost = {**follow_up, "earlier": {**earlier, "task": "How many pages has b999?"}}
    lost["earlier"]["calls"] = [{"tool": "get_volume", "arguments": {"book_id": "b999"}}]
    lost["task"], lost["calls"] = "And b114?", [{"tool": "get_volume", "arguments": {"book_id": "b114"}}]
    refused = {"reply": "refusal", "about": ["b998"], "answer": "There is no book b998."}
    missing = proposal("How many pages has b998?", ("get_volume", {"book_id": "b998"})) | refused
    there = proposal("How many pages has b121?", ("get_volume", {"book_id": "b121"}))
    there |= {"reply": "refusal", "about": ["b121"], "answer": "There is no book b121."}
    pizza = {"reply": "refusal", "about": ["pizza"], "answer": "Sorry, I cannot order pizza."}
    thanks = {"reply": "talk", "answer": "You are welcome."}
    more = [missing, there, proposal("Order a pizza.") | pizza, proposal("Thanks!") | thanks]
    with endpoint(answer(follow_up, lost, *more)) as at:
        found = await generate_scenarios(SHELF, 8, model=writer(at), rounds=1, held_out=0, progress=False)
    kinds = {one.task: one.plan.kind for one in found.scenarios}
    assert kinds == {
        "How many pages does b100 have?": "single",
        "And b107?": "follow_up",
        "How many pages has b998?": "impossible",
        "Order a pizza.": "impossible",
        "Thanks!": "talk",
    }
    second = next(one for one in found.scenarios if one.plan.kind == "follow_up")
    assert [message["content"] for message in second.messages] == [earlier["task"], "The pages are 90.", "And b107?"]
    assert second.plan.facts == ["103"]
    reasons = str([one.reason for one in found.dropped])
    assert "what was asked before could not be done" in reasons
    assert "it gave no error" in reasons


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "there are no calls"),
        ({"reply": "talk"}, "needs an answer"),
        ({"reply": "talk", "answer": "Hello!"}, None),
        ({"reply": "refusal", "answer": "Here it is.", "about": ["pizza"]}, "must say that it cannot be done"),
        ({"reply": "refusal", "answer": "I have no tool for that.", "about": ["pizza"]}, "mention one of `about`"),
        ({"reply": "refusal", "answer": "I cannot order pizza.", "about": ["pizza"]}, None),
        ({"reply": "refusal", "answer": "I cannot convert it.", "about": ["convert"]}, "there may be a tool for it"),
        ({"reply": "refusal", "answer": "I cannot convert it.", "about": ["a tool to fly"]}, "mention one of `about`"),
        ({"reply": "refusal", "answer": "I cannot book the trip to Rome.", "about": ["the trip to Rome"]}, None),
        ({"earlier": {"task": "Hello."}}, "earlier: there are no calls"),
    ],
)
def test_what_is_replied_without_a_result_is_held_to_rules(changes: dict[str, Any], why: str | None) -> None:
    found = unfit(Proposal.model_validate(proposal("And now?") | changes), ZONE.tools, (1, 5))
    assert (found is None) if why is None else (found is not None and why in found)


@pytest.mark.parametrize("reference", ["#/$defs/nowhere", "#", "{url}/schema.json"])
def test_a_schema_whose_references_lead_nowhere_is_left_to_the_execution(reference: str) -> None:
    asked: list[str] = []

    async def answer_all(scope: Any, _receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            asked.append(scope["path"])
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})

    with serving(answer_all) as url:
        properties = {"at": {"$ref": reference.format(url=url)}}
        tool = {"name": "look", "inputSchema": {"type": "object", "properties": properties}}
        proposed = Proposal.model_validate(proposal("Look.", ("look", {"at": {}})))
        assert unfit(proposed, Catalog.of_tools([tool]).tools, (1, 5)) is None
    assert asked == [], "nothing is fetched on a server's word"

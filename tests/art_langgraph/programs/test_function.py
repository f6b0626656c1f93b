"""Functions as agents: plain `openai` clients of every kind, sync and async, through the real gateway."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

import openai
import pytest
from langchain_core.runnables import Runnable
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import RetryPolicy

from art_langgraph import (
    ChatART,
    GRPOConfig,
    PinIgnored,
    RolloutsFailed,
    Run,
    Scenario,
    TrainerClient,
    TrajectoryGroup,
    current_run,
    evaluate,
    gather,
    rollout,
    train,
)
from art_langgraph.credit import group_refs
from tests.support.pages.programs import program
from tests.support.patience import PATIENCE
from tests.support.runs.graphs import counting
from tests.support.servers.trainer_server import TOKEN, TrainerServer
from trainer_server.wire import ConfigError

pytestmark = pytest.mark.usefixtures("connected")

SAY: Any = [{"role": "user", "content": "say hi"}]


async def ask(client: openai.AsyncOpenAI, text: str, **options: Any) -> str:
    messages: Any = [{"role": "user", "content": text}]
    answer = await client.chat.completions.create(model="agent", messages=messages, max_tokens=50, **options)
    return str(answer.choices[0].message.content)


async def agent(question: str) -> str:
    async with openai.AsyncOpenAI() as client:
        return await ask(client, question)


def sync_agent(question: str) -> str:
    with openai.OpenAI() as client:
        answer = client.chat.completions.create(
            model="agent", messages=[{"role": "user", "content": question}], max_tokens=50
        )
    return str(answer.choices[0].message.content)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_plain_client_in_a_node_is_recorded_with_its_place(connected: TrainerServer, is_async: bool) -> None:
    base_url, tries = f"{connected.url}/v1", list[str]()

    def note(answer: Any) -> dict[str, Any]:
        tries.append(answer.choices[0].message.content)
        if len(tries) == 1:
            raise ConnectionError
        return {"messages": [("ai", tries[-1])]}

    async def node(state: MessagesState) -> dict[str, Any]:
        async with openai.AsyncOpenAI(base_url=base_url, api_key=TOKEN) as client:
            return note(await client.chat.completions.create(model="agent", messages=SAY))

    def sync_node(state: MessagesState) -> dict[str, Any]:
        with openai.OpenAI(base_url=base_url, api_key=TOKEN) as client:
            return note(client.chat.completions.create(model="agent", messages=SAY))

    policy = RetryPolicy(initial_interval=0.01, jitter=False)
    inner = StateGraph(MessagesState).add_node("asks", node if is_async else sync_node, retry_policy=policy)
    graph = StateGraph(MessagesState).add_node("inside", inner.add_edge(START, "asks").compile())
    run = await rollout(graph.add_edge(START, "inside").compile(), "go", lambda _: 1.0)
    assert run.error is None
    first, second = run.completions
    assert [call.path for call in run.completions] == [["inside", "asks"]] * 2
    assert (first.superseded, second.superseded) == ("retry", None)
    assert {call.attempt for call in run.completions} == {node.attempt for node in run.nodes if node.node == "asks"}
    group = TrajectoryGroup(scenario=run.scenario, trajectories=[run])
    (reference,) = group_refs([group], policy="agent", nodes=["asks"], retry_credit="drop")
    assert [trajectory.completions for trajectory in reference.trajectories] == [[second.id]]


@pytest.mark.parametrize("function", [agent, sync_agent, functools.partial(agent), lambda question: agent(question)])
async def test_a_function_is_an_agent(function: Any) -> None:
    found = await rollout(function, "say hello", lambda t: float(t.final_text == "hello"))
    assert (found.error, found.output, found.reward) == (None, "hello", 1.0)
    (call,) = found.completions
    assert (call.policy, call.version, call.trainable) == ("agent", 0, True)
    assert call.messages == [{"role": "user", "content": "say hello"}]
    assert call.message is not None
    assert call.message["content"] == "hello"
    assert [message.text for message in found.messages] == ["say hello", "hello"]
    async with TrainerClient() as client:
        assert (await client.completion(str(call.id))).rollout == found.rollout_id


async def test_what_a_function_is_given_depends_on_its_parameters() -> None:
    scenario = Scenario(input="say x", metadata={"answer": 1})

    async def nothing() -> Any:
        return current_run().scenario.metadata

    async def the_scenario(scenario: Any) -> Any:
        return scenario.metadata

    async def annotated(task: Scenario) -> Any:
        return task.metadata

    async def both(question: str, run: Run) -> Any:
        return question, run.rollout_id == current_run().rollout_id

    async def second(question: str, here: Any) -> Any:
        return question, here is current_run()

    async def keyword(question: str, model: str = "m", *, run: Run) -> Any:
        return question, run is current_run()

    class Agent:
        async def __call__(self, question: str, run: Run) -> Any:
            return question, run is current_run()

    for function in (nothing, the_scenario, annotated):
        assert (await rollout(function, scenario)).output == {"answer": 1}
    for function in (both, second, keyword, Agent()):
        assert (await rollout(function, scenario)).output == ("say x", True)
    with pytest.raises(ConfigError, match="no rollout is running here"):
        current_run()


async def test_a_graph_that_a_function_returns_is_run() -> None:
    async def factory(scenario: Scenario) -> Any:
        return counting()

    found = await rollout(factory, "x")
    assert found.output["messages"][-1].text == "0"
    assert [call.node for call in found.completions] == ["model"]


async def test_tool_calls_and_their_results_are_read_from_the_requests() -> None:
    def tools_agent(question: str) -> str:
        messages: list[Any] = [{"role": "user", "content": question}]
        with openai.OpenAI() as client:
            for _ in range(3):
                answer = client.chat.completions.create(model="agent", messages=messages, max_tokens=50)
                message = answer.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    return str(message.content)
                for call in message.tool_calls:
                    value = json.loads(call.function.arguments)["value"]
                    text = f'call double {{"value": {2 * value}}}' if value < 4 else f"say it is {2 * value}"
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
        raise AssertionError("it calls tools for ever")

    found = await rollout(tools_agent, 'call double {"value": 2}')
    assert found.output == "it is 8"
    assert [(call.tool, call.arguments, call.result) for call in found.tool_calls] == [
        ("double", {"value": 2}, 'call double {"value": 4}'),
        ("double", {"value": 4}, "say it is 8"),
    ]
    assert len(found.completions) == 3


async def test_a_function_that_raises_keeps_what_it_did() -> None:
    async def broken(question: str) -> str:
        await agent(question)
        raise RuntimeError("after")

    def exits() -> None:
        sys.exit(3)

    found = await rollout(broken, "say before", lambda t: -1.0 if t.error else 1.0)
    assert (found.error, found.reward, len(found.completions)) == ("RuntimeError: after", -1.0, 1)
    assert (await rollout(exits, "x")).error == "RuntimeError: SystemExit: 3"
    with pytest.raises(RolloutsFailed, match="4 of 4 runs raised: RuntimeError: SystemExit: 3"):
        await gather(exits, ["a", "b"], 2, progress=False)


async def test_the_time_of_a_function_is_limited() -> None:
    ended = threading.Event()

    async def slow() -> None:
        await asyncio.sleep(60)

    def slow_thread() -> None:
        time.sleep(0.3)
        ended.set()

    for function in (slow, slow_thread):
        error = str((await rollout(function, "x", timeout=0.1)).error)
        assert error.startswith("TimeoutError")
        assert "longer than timeout=0.1 s" in error
    assert await asyncio.to_thread(ended.wait, PATIENCE)


async def test_a_client_that_was_made_elsewhere_belongs_to_the_rollout(connected: TrainerServer) -> None:
    elsewhere = openai.AsyncOpenAI(base_url=f"{connected.url}/v1", api_key=TOKEN)
    localhost = openai.OpenAI(base_url=f"{connected.url.replace('127.0.0.1', 'localhost')}/v1", api_key=TOKEN)

    async def two(question: str) -> str:
        messages: Any = [{"role": "user", "content": "say sync"}]
        await asyncio.to_thread(localhost.chat.completions.create, model="agent", messages=messages, max_tokens=9)
        stream = await elsewhere.chat.completions.create(
            model="agent", messages=[{"role": "user", "content": question}], stream=True, max_tokens=50
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    found = await rollout(two, "say streamed")
    assert found.output == "streamed"
    assert [(call.message or {})["content"] for call in found.completions] == ["sync", "streamed"]
    assert await ask(elsewhere, "say outside") == "outside"
    await elsewhere.close()


async def test_sixteen_at_once_keep_their_own_completions() -> None:
    together = threading.Barrier(16)  # each has a thread of its own

    def numbered(question: str) -> str:
        together.wait(PATIENCE)
        sync_agent("say first")
        return sync_agent(question)

    groups = await gather(numbered, [f"say {n}" for n in range(16)], 1, progress=False, temperature=1.0)
    for number, group in enumerate(groups):
        (run,) = group.trajectories
        said = [(call.message or {})["content"] for call in run.completions]
        assert (run.error, run.output, said) == (None, str(number), ["first", str(number)])


async def test_langchain_in_a_function_is_not_counted_twice() -> None:
    model = ChatART(policy="agent", max_tokens=50)

    async def mixed(question: str) -> str:
        said = (await model.ainvoke(question)).text
        return said + await agent("say b")

    found = await rollout(mixed, "say a")
    assert found.output == "ab"
    assert [(call.message or {})["content"] for call in found.completions] == ["a", "b"]
    assert len(found.completion_ids) == 2


async def test_a_client_in_a_node_of_a_graph_is_captured_too() -> None:
    async def node(state: MessagesState) -> dict[str, Any]:
        base = current_run().base_url
        async with openai.AsyncOpenAI(base_url=base, api_key=TOKEN) as client:
            return {"messages": [("ai", await ask(client, state["messages"][-1].text))]}

    graph: Runnable[Any, Any] = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile()
    found = await rollout(graph, "say deep", temperature=0.5)
    assert [(call.message or {})["content"] for call in found.completions] == ["deep"]


CHILD = """
import openai
client = openai.OpenAI()
question = {"role": "user", "content": "say child"}
answer = client.chat.completions.create(model="agent", messages=[question], max_tokens=9)
print(answer.choices[0].message.content)
"""


async def test_child_processes_get_a_base_url_of_the_rollout(connected: TrainerServer) -> None:
    """Python with environment variables only, and curl."""
    url, key = '"$OPENAI_BASE_URL/chat/completions"', '"Authorization: Bearer $OPENAI_API_KEY"'
    curl = f'{program("curl")} -sf {url} -H {key} -d "$BODY"'
    bodies = json.dumps({"model": "agent", "messages": [{"role": "user", "content": "say curled"}], "max_tokens": 9})

    def agent(question: str, run: Run) -> str:
        child = subprocess.run(
            [sys.executable, "-c", CHILD], env={"PATH": "/usr/bin:/bin", **run.environment}, capture_output=True,
            text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert child.returncode == 0, child.stderr
        curled = subprocess.run(
            ["sh", "-c", curl], env={"PATH": "/usr/bin:/bin", "BODY": bodies, **run.environment}, capture_output=True,
            text=True, timeout=PATIENCE,
        )  # fmt: skip
        said = json.loads(curled.stdout)["choices"][0]["message"]["content"]
        return f"{child.stdout.strip()} {said} {'agent' in run.policies}"

    async with TrainerClient() as client:
        found = await rollout(agent, "x", version=0, temperature=0.5)
        rows = [await client.completion(str(call.id)) for call in found.completions]
    assert (found.error, found.output) == (None, "child curled True")
    assert [(row.version, row.sampling.temperature, row.rollout) for row in rows] == [(0, 0.5, found.rollout_id)] * 2
    assert [(call.message or {})["content"] for call in found.completions] == ["child", "curled"]


async def test_child_processes_inherit_the_base_url_of_their_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    show = [sys.executable, "-S", "-c", "import os; print(os.environ.get('OPENAI_BASE_URL'))"]

    def inherits(question: str, run: Run) -> list[bool]:
        environments = (None, {**os.environ, "MORE": "1"}, {"OPENAI_BASE_URL": "http://elsewhere"}, {})
        told = [subprocess.run(show, env=env, capture_output=True, text=True).stdout.strip() for env in environments]
        return [told == [run.base_url, run.base_url, "http://elsewhere", "None"]]

    async def inherits_too(question: str, run: Run) -> list[bool]:
        child = await asyncio.create_subprocess_exec(*show, stdout=subprocess.PIPE)
        told, _ = await child.communicate()
        return [told.decode().strip() == run.base_url]

    for function in (inherits, inherits_too):
        (group,) = await gather(function, ["x"], 3, progress=False)
        assert [run.output for run in group.trajectories] == [[True]] * 3
    assert subprocess.run(show, capture_output=True, text=True).stdout.strip() == "None"


async def test_other_apis_are_tied_and_recorded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    anthropic = pytest.importorskip("anthropic")
    for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    async def several(question: str, run: Run) -> list[str]:
        asked: Any = {"model": "agent", "max_tokens": 50}
        async with anthropic.AsyncAnthropic() as client:
            one = await client.messages.create(messages=[{"role": "user", "content": "say one"}], **asked)
        by_url = anthropic.Anthropic(base_url=run.anthropic_base_url, api_key=run.api_key)
        two = by_url.messages.create(messages=[{"role": "user", "content": "say two"}], **asked)
        async with openai.AsyncOpenAI() as plain:
            three = await plain.responses.create(model="agent", input=question, max_output_tokens=50)
        return [one.content[0].text, two.content[0].text, three.output_text]

    found = await rollout(several, "say three", version=0, temperature=0.5)
    assert (found.error, found.output) == (None, ["one", "two", "three"])
    assert [(call.message or {})["content"] for call in found.completions] == ["one", "two", "three"]
    assert found.versions == {"agent": [0]}


async def test_version_and_temperature_hold_for_every_client(connected: TrainerServer) -> None:
    async with TrainerClient() as client:
        await client.create_policy("anyone")
        groups = await gather(counting("anyone"), ["x"], 2, lambda t: float(t.final_text == "0"), progress=False)
        await client.train_step("anyone", groups, GRPOConfig(lr=1e-3))

        async def asks(question: str, run: Run) -> str:
            by_url = openai.AsyncOpenAI(base_url=run.base_url, api_key=run.api_key)
            elsewhere = openai.AsyncOpenAI(base_url=f"{connected.url}/v1", api_key=TOKEN)
            for asked in (by_url, elsewhere):
                await asked.chat.completions.create(
                    model="anyone", messages=[{"role": "user", "content": question}], max_tokens=9, temperature=0.9
                )
                await asked.close()
            return "done"

        for version, temperature in ((0, 0.25), (1, 0.5)):
            found = await rollout(asks, "say x", version=version, temperature=temperature)
            assert (found.error, found.versions) == (None, {"anyone": [version]})
            rows = [await client.completion(str(call.id)) for call in found.completions]
            assert [row.sampling.temperature for row in rows] == [temperature] * 2
        named = await rollout(asks, "say x", version={"anyone": 0})
        assert named.versions == {"anyone": [0]}


async def test_a_version_that_a_function_did_not_ask_for_is_an_error() -> None:
    async def mute(question: str) -> str:
        return question

    with pytest.raises(PinIgnored, match="the trainer server answered in none of 2 runs"):
        await evaluate(mute, ["a"], lambda _: 1.0, version=0, n=2, progress=False)


async def test_a_function_that_asked_nobody_is_told_how(caplog: pytest.LogCaptureFixture) -> None:
    async def mute(question: str) -> str:
        return question

    def in_a_bare_thread(question: str) -> str:
        said: list[str] = []
        thread = threading.Thread(target=lambda: said.append(sync_agent(question)))
        thread.start()
        thread.join()
        return said[0]

    for function in (mute, in_a_bare_thread):
        found = await rollout(function, "say x", lambda _: 1.0)
        assert (found.error, found.completions) == (None, [])
    (warning,) = caplog.messages
    assert "the function made no request that the trainer server knows as its own" in warning
    assert "current_run().base_url" in warning
    with pytest.raises(ConfigError, match="mute is a function: config= and resume= are for graphs"):
        await rollout(mute, "x", config={"tags": ["x"]})


async def test_a_function_is_evaluated_and_trained() -> None:
    told = iter(range(100))

    async def learner(question: str, run: Run) -> str:
        text = f"say {next(told)}"
        async with openai.AsyncOpenAI() as client:
            answer = await client.chat.completions.create(
                model="learner", messages=[{"role": "user", "content": text}], max_tokens=9
            )
        run.reward = float(int(str(answer.choices[0].message.content)) % 2)
        return str(answer.choices[0].message.content)

    async with TrainerClient() as client:
        await client.create_policy("learner")
        measured = await evaluate(learner, ["a"], n=2, progress=False)
        assert (measured.versions, measured.mean) == ({"learner": [0]}, 0.5)
        steps = train(
            learner, ["a"], policy="learner", steps=1, client=client, groups_per_step=1, n=4,
            config=GRPOConfig(lr=1e-3), progress=False,
        )  # fmt: skip
        (record,) = [step async for step in steps]
        assert record.result.version == 1
        assert record.result.metrics["completions"] == 4


def whole(question: str) -> Any:
    return openai.OpenAI().chat.completions.create(
        model="agent", messages=[{"role": "user", "content": question}], max_tokens=50
    )


def streamed(question: str) -> Any:
    messages: Any = [{"role": "user", "content": question}]
    return list(openai.OpenAI().chat.completions.create(model="agent", messages=messages, max_tokens=50, stream=True))


async def streamed_async(question: str) -> Any:
    messages: Any = [{"role": "user", "content": question}]
    async with openai.AsyncOpenAI() as client:
        return await client.chat.completions.create(model="agent", messages=messages, max_tokens=50, stream=True)


def response(question: str) -> Any:
    return openai.OpenAI().responses.create(model="agent", input=question, max_output_tokens=50)


def streamed_response(question: str) -> Any:
    return list(openai.OpenAI().responses.create(model="agent", input=question, max_output_tokens=50, stream=True))


def message(question: str, run: Run) -> Any:
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=run.anthropic_base_url, api_key=run.api_key)
    return client.messages.create(model="agent", messages=[{"role": "user", "content": question}], max_tokens=50)


def streamed_message(question: str, run: Run) -> Any:
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=run.anthropic_base_url, api_key=run.api_key)
    asked: Any = [{"role": "user", "content": question}]
    return list(client.messages.create(model="agent", messages=asked, max_tokens=50, stream=True))


def langchain(question: str) -> Any:
    return ChatART(policy="agent", max_tokens=50).invoke(question)


def streamed_langchain(question: str) -> Any:
    return list(ChatART(policy="agent", max_tokens=50).stream(question))


CLIENTS = [
    whole, streamed, streamed_async, response, streamed_response, message, streamed_message, langchain,
    streamed_langchain,
]  # fmt: skip


@pytest.mark.parametrize("function", CLIENTS)
async def test_a_prompt_over_the_context_is_recorded_as_a_refusal(connected: TrainerServer, function: Any) -> None:
    found = await rollout(function, "x" * 3000, lambda t: 0.0)
    words = "This model's maximum context length is 2000 tokens."
    assert words in str(found.error)
    (call,) = found.completions
    assert words in str(call.error)
    assert "went away" not in str(call.error)
    assert (call.message, call.trainable) == (None, False)
    async with TrainerClient() as client:
        row = await client.completion(str(call.id))
    assert (row.status, row.error, row.rollout) == ("refused", words, found.rollout_id)
    assert [item["content"] for item in call.messages] == ["x" * 3000]


async def test_what_the_server_itself_refuses_is_recorded_too() -> None:
    def wrong(question: str, run: Run) -> str:
        messages: Any = [{"role": "user", "content": question}]
        with openai.OpenAI() as client:
            with pytest.raises(openai.BadRequestError):
                client.chat.completions.create(model="agent", messages=messages, temperature=99.0)
            with pytest.raises(openai.NotFoundError):
                client.responses.create(model="nobody", input=question, stream=True)
            by_url = openai.OpenAI(base_url=run.base_url, api_key=run.api_key)
            with pytest.raises(openai.BadRequestError):
                by_url.chat.completions.create(model="agent", messages=messages, n=2, stream=True)
        with pytest.raises(openai.BadRequestError):
            ChatART(policy="agent", temperature=99.0).invoke(question)
        return str(whole(question).choices[0].message.content)

    found = await rollout(wrong, "say hi")
    assert (found.error, found.output) == (None, "hi")
    *refused, answered = found.completions
    assert answered.error is None
    assert [(call.id, call.superseded) for call in refused] == [(None, None)] * 4
    said = [str(call.error) for call in refused]
    assert said[0].startswith("refused: `temperature`")
    assert said[1].startswith("refused: the model 'nobody' does not exist")
    assert said[2].startswith("refused: streaming with n > 1 is not offered")
    assert "`temperature`" in said[3]
    assert [call.messages[0]["content"] for call in refused] == ["say hi"] * 4


async def test_a_request_that_is_sent_again_is_refused_once(
    connected: TrainerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As clients do by themselves where the server is full."""
    admission = connected.app.state.server.gateway.sampler.admission
    most = admission.most
    monkeypatch.setattr(admission, "most", 0)

    def patient(question: str) -> str:
        messages: Any = [{"role": "user", "content": question}]
        with openai.OpenAI(max_retries=0) as client:
            for _ in range(2):
                with pytest.raises(openai.RateLimitError):
                    client.chat.completions.create(model="agent", messages=messages, max_tokens=50)
            monkeypatch.setattr(admission, "most", most)
            answer = client.chat.completions.create(model="agent", messages=messages, max_tokens=50)
        return str(answer.choices[0].message.content)

    found = await rollout(patient, "say hi")
    assert (found.error, found.output) == (None, "hi")
    assert [call.superseded for call in found.completions] == ["retry", "retry", None]
    assert "requests are under way" in str(found.completions[0].error)


async def leaves_langchain(question: str) -> str:
    model = ChatART(policy="agent", max_tokens=50)
    stream = model.astream(question)
    async for chunk in stream:
        if chunk.text:
            break
    await stream.aclose()  # type: ignore[attr-defined]
    return (await model.ainvoke("say done")).text


def leaves_langchain_sync(question: str) -> str:
    model = ChatART(policy="agent", max_tokens=50)
    for chunk in model.stream(question):
        if chunk.text:
            break
    return model.invoke("say done").text


async def leaves_openai(question: str) -> str:
    messages: Any = [{"role": "user", "content": question}]
    async with openai.AsyncOpenAI() as client:
        async with await client.chat.completions.create(model="agent", messages=messages, stream=True) as stream:
            async for _ in stream:
                break
        return await ask(client, "say done")


def leaves_openai_sync(question: str) -> str:
    messages: Any = [{"role": "user", "content": question}]
    with openai.OpenAI() as client:
        with client.chat.completions.create(model="agent", messages=messages, stream=True) as stream:
            for _ in stream:
                break
        answer = client.chat.completions.create(model="agent", messages=[{"role": "user", "content": "say done"}])
        return str(answer.choices[0].message.content)


@pytest.mark.parametrize("agent", [leaves_langchain, leaves_langchain_sync, leaves_openai, leaves_openai_sync])
async def test_a_stream_that_an_agent_leaves_is_recorded_once_and_not_trained(agent: Any) -> None:
    found = await rollout(agent, "say a long answer of many words")
    assert (found.error, found.output) == (None, "done")
    left, whole = found.completions
    assert (left.error is not None, left.trainable, whole.trainable) == (True, False, True)
    assert found.completion_ids == [whole.id]


@pytest.mark.parametrize("until", ["the end", "the finish_reason"])
async def test_a_stream_of_which_an_agent_read_the_end_is_trained(until: str) -> None:
    async def reads(question: str) -> str:
        messages: Any = [{"role": "user", "content": question}]
        text = ""
        async with (
            openai.AsyncOpenAI() as client,
            await client.chat.completions.create(model="agent", messages=messages, stream=True) as stream,
        ):
            async for chunk in stream:
                text += (chunk.choices and chunk.choices[0].delta.content) or ""
                if until == "the finish_reason" and chunk.choices and chunk.choices[0].finish_reason:
                    break
        return text

    found = await rollout(reads, "say many words")
    assert (found.error, found.output) == (None, "many words")
    assert [call.trainable for call in found.completions] == [True]


@pytest.mark.parametrize("whose", ["its own", "another"])
async def test_a_client_in_a_node_that_sends_a_rollouts_id_itself(whose: str) -> None:
    async def node(state: MessagesState) -> Any:
        id = current_run().rollout_id if whose == "its own" else "ro-another"
        async with openai.AsyncOpenAI(
            base_url=f"{os.environ['ART_BASE_URL']}/v1", api_key=TOKEN, default_headers={"X-ART-Rollout": id}
        ) as client:
            text = await ask(client, "say by hand")
        heard = await ChatART(policy="agent", max_tokens=50).ainvoke("say by a model")
        return {"messages": [("ai", text), heard]}

    graph = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile()
    found = await rollout(graph, "x")
    assert found.error is None
    texts = [(call.message or {})["content"] for call in found.completions]
    assert texts == (["by hand", "by a model"] if whose == "its own" else ["by a model"])
    assert len(found.completion_ids) == len(texts)

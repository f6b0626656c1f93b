"""LangChain chat models as judges and writers: wherever a model is named, a `BaseChatModel` may stand."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel, Field, SecretStr

from art_langgraph import (
    LLM,
    ChatART,
    LLMError,
    Ruler,
    Scenario,
    Trajectory,
    TrajectoryGroup,
    rollout,
    ruler_score_group,
)
from art_langgraph.llm.target import load_litellm
from art_langgraph.trajectory import CompletionCall
from tests.support.servers.judge_app import Endpoint, Fault, endpoint, scores
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.wire import ConfigError

ASKED = [{"role": "user", "content": "How many?"}]
GOOD = '{"number": 3, "why": "so"}'


class Count(BaseModel):
    number: int
    why: str


class Plain(BaseChatModel):
    """A model that knows neither tools nor structured output, and no names of OpenAI's."""

    says: str = GOOD
    finish: dict[str, Any] = Field(default_factory=dict)

    @property
    def _llm_type(self) -> str:
        return "plain"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        message = AIMessage(self.says, response_metadata=self.finish)
        return ChatResult(generations=[ChatGeneration(message=message)])


def chat(at: Endpoint, model: str = "judge", **options: Any) -> ChatOpenAI:
    return ChatOpenAI(model=model, base_url=at.url, api_key=SecretStr("secret"), max_retries=0, **options)


def group(*said: str) -> TrajectoryGroup:
    task = Scenario(id="sums", input="Two and two?")

    def run(text: str) -> Trajectory:
        message = {"role": "assistant", "content": text}
        call = CompletionCall(id=None, messages=ASKED, message=message, started=0.0)
        return Trajectory(scenario=task, completions=[call])

    return TrajectoryGroup(scenario=task, trajectories=[run(text) for text in said])


async def test_a_model_without_tools_is_asked_in_words() -> None:
    model = LLM(Plain(), cache=None)
    assert await model.ask(ASKED, Count) == Count(number=3, why="so")
    assert model.model == "Plain"
    assert model.usage.cost is None


@pytest.mark.parametrize("error", [ValueError("json_schema is not supported"), TypeError("unexpected 'include_raw'")])
async def test_a_way_of_asking_that_a_package_refuses_is_passed_over(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("art_langgraph.llm.llm._works", {})
    tried: list[str] = []

    class Refusing(Plain):
        def with_structured_output(self, schema: Any, *, method: str = "", **_: Any) -> Any:
            tried.append(method)
            raise error

    assert await LLM(Refusing(), cache=None).ask(ASKED, Count) == Count(number=3, why="so")
    assert tried == ["json_schema", "function_calling"]


async def test_an_answer_whose_price_cannot_be_read_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    litellm = await load_litellm()
    monkeypatch.setitem(litellm.model_cost, "Plain", {"litellm_provider": "nobody"})

    def broken(*_: Any) -> Any:
        raise KeyError("input_cost_per_token")

    monkeypatch.setattr(litellm, "cost_per_token", broken)
    model = LLM(Plain(), cache=None)
    assert (await model.ask(ASKED, Count)).number == 3
    assert model.usage.cost is None


@pytest.mark.parametrize(
    ("finish", "kind"),
    [
        ({"stop_reason": "refusal"}, "refused"),
        ({"finish_reason": "SAFETY"}, "refused"),
        ({"stop_reason": "max_tokens"}, "malformed"),
    ],
)
async def test_words_of_other_providers_are_understood(finish: dict[str, str], kind: str) -> None:
    model = LLM(Plain(finish=finish), cache=None, retries=1)
    with pytest.raises(LLMError, match=f"Plain: {kind}") as caught:
        await model.ask(ASKED, Count)
    assert caught.value.kind == kind


async def test_tokens_and_the_price_of_a_known_model_are_counted() -> None:
    with endpoint(GOOD) as at:
        model = LLM(chat(at, "gpt-4o-mini"), cache=None)
        await model.ask(ASKED, Count)
    assert (model.usage.prompt_tokens, model.usage.completion_tokens) == (100, 20)
    assert model.usage.cost == pytest.approx(2.7e-5)


async def test_options_of_the_chat_model_are_its_own() -> None:
    with endpoint(GOOD) as at:
        await LLM(chat(at, temperature=0.5), cache=None).ask(ASKED, Count)
        assert at.requests[0]["temperature"] == 0.5
        with pytest.raises(ConfigError, match=r"temperature: set it on the chat model itself, ChatOpenAI"):
            LLM(chat(at), temperature=0.5)


@pytest.mark.usefixtures("own_cache")
async def test_a_chat_model_judges_wherever_a_judge_is_named() -> None:
    with endpoint(scores(lambda text: 1.0 if "four" in text else 0.25)) as at:
        ruler = Ruler(LLM(chat(at), cache=None))
        assert (await ruler(group("four", "five"))).rewards == [1.0, 0.25]
        assert (ruler.usage.calls, ruler.usage.prompt_tokens) == (1, 100)
        assert (await Ruler(chat(at))(group("five", "four"))).rewards == [0.25, 1.0]
        judged = await ruler_score_group(group("it is four", "no"), chat(at))
        assert judged is not None
        assert judged.rewards == [1.0, 0.25]
    with endpoint(Fault(401, "bad key")) as at:
        found = await Ruler(chat(at))(group("four", "five"))
    assert "RULER: judge: auth: " in str(found.trajectories[0].reward_error)


@pytest.mark.usefixtures("own_cache")
async def test_what_a_chat_model_is_asked_inside_a_rollout_is_not_part_of_it(connected: TrainerServer) -> None:
    policy = ChatART(policy="agent", max_tokens=50)
    judge = LLM(ChatART(policy="agent", max_tokens=100))

    async def node(state: MessagesState) -> dict[str, Any]:
        assert (await judge.ask([{"role": "user", "content": f"say {GOOD}"}], Count)).number == 3
        return {"messages": [await policy.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
    found = await rollout(graph, "say hello")
    assert [call.message for call in found.completions] == [{"role": "assistant", "content": "hello"}]
    assert (judge.usage.calls, judge.usage.cached, judge.usage.cost) == (1, 0, 0.0)

"""A base model that writes requests for plans and reads them back, over HTTP; and plans for it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from art_langgraph.llm.trainer_model import TrainerModel
from art_mcp import MCPScenario
from art_mcp.scenarios.catalog import CatalogTool
from art_mcp.scenarios.plan import Observation, Plan, Step
from art_mcp.scenarios.writing.wordings import Wordings
from tests.support.patience import PATIENCE
from tests.support.servers.judge_app import Endpoint, Fault, endpoint
from trainer_server.common import Connection

TOOLS = [
    CatalogTool(name="list_items", description="Lists all items."),
    CatalogTool(
        name="get_price",
        description="Gets the price of an item.",
        input_schema={"type": "object", "properties": {"item_id": {"type": "string"}}, "required": ["item_id"]},
    ),
]
ITEMS = Observation(text='[{"item_id": "it-77", "name": "lamp"}, {"item_id": "it-88", "name": "chair"}]')


def price(number: int, **plan: Any) -> MCPScenario:
    step = Step(tool="get_price", arguments={"item_id": f"it-{number}"}, reads=True)
    settings = {
        "reference": [step],
        "observations": [Observation(text=json.dumps({"price": 1000 + number}))],
        "facts": [str(1000 + number)],
        "answer": f"The price of it-{number} is {1000 + number}.",
        "phrasing": "ask 1",
    }
    return MCPScenario.make(f"Get the price of it-{number}.", Plan.model_validate({**settings, **plan}))


CHAIN = MCPScenario.make(
    'Find the item "lamp", then get its price.',
    Plan(
        kind="chain",
        reference=[
            Step(tool="list_items", reads=True),
            Step(tool="get_price", arguments={"item_id": {"$step": 0, "path": [0, "item_id"]}}, reads=True),
        ],
        observations=[ITEMS, Observation(text='{"price": 20}')],
        facts=["20"],
        answer="The price is 20.",
    ),
)


@dataclass
class BaseModel:
    """Writes a request for each plan, and makes the calls of the requests that it wrote.

    Args:
        write: What it writes: takes the exact values.
        calls: The calls that it makes in place of those of the plan, by a word of the request.
    """

    write: Callable[[list[str]], str] = lambda values: f"I need what {' and '.join(values)} costs"
    calls: dict[str, list[tuple[str, dict[str, Any]]]] = field(default_factory=dict)
    plans: dict[str, list[tuple[str, dict[str, Any]]]] = field(default_factory=dict)
    prompts: list[str] = field(default_factory=list)

    def __call__(self, body: dict[str, Any]) -> str | Fault:
        texts = [str(message["content"]) for message in body["messages"] if message["role"] != "system"]
        if "tools" not in body:
            return json.dumps({"text": self._request(texts[0])})
        said = next(text for text in texts if text in self.plans)
        results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        own = next((calls for word, calls in self.calls.items() if word in said), self.plans[said])
        if len(results) == len(own):
            return f"It gave {results}"
        tool, arguments = own[len(results)]
        call = {"id": f"c{len(results)}", "type": "function"}
        call["function"] = {"name": tool, "arguments": json.dumps(arguments)}  # type: ignore[assignment]
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        answer = {"id": "x", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice]}
        return Fault(body=json.dumps(answer).encode())

    def _request(self, prompt: str) -> str:
        self.prompts.append(prompt)
        (line,) = re.findall(r"Exact values that must be in the message: (.*)", prompt) or ["[]"]
        text = self.write(json.loads(line))
        calls: list[tuple[str, dict[str, Any]]] = []
        for row in prompt.splitlines():
            if tool := re.match(r"\d+\. (\w+):", row):
                calls.append((tool[1], {}))
            elif argument := re.match(r"   (\w+): (.*)", row):
                source = re.search(r"It is '(.*)', which the message must not say", argument[2])
                calls[-1][1][argument[1]] = source[1] if source else json.loads(argument[2])
        self.plans[text] = calls
        return text


@contextmanager
def writer(
    model: Callable[[dict[str, Any]], str | Fault], seconds: float = PATIENCE
) -> Iterator[tuple[Wordings, Endpoint]]:
    with endpoint(model) as at:
        trainer = TrainerModel(Connection(at.url.removesuffix("/v1"), "key"), "base")
        yield Wordings(trainer, None, TOOLS, seed=0, until=asyncio.get_running_loop().time() + seconds), at

"""The agent, as the documentation of the OpenAI Agents SDK writes one, and an app that answers by it.

It runs in an environment that has `openai-agents` and nothing of this project. `POST /answer` takes `items` (the
conversation until now), `model`, `base_url`, `api_key`, `max_tokens` and `responses` (whether the model is asked by the
Responses API), and gives `output` or `error`.
"""

import shop  # the folder of plain_openai is in PYTHONPATH
from agents import Agent, ModelSettings, OpenAIProvider, RunConfig, Runner, function_tool
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

INSTRUCTIONS = "Answer questions about the shop. Call the right tool, then answer with what it says."
MAX_TURNS = 3


@function_tool
def price(thing: str) -> str:
    """Price of a thing."""
    return shop.look_up("price", thing)


@function_tool
def stock(thing: str) -> str:
    """How many there are of a thing."""
    return shop.look_up("stock", thing)


@function_tool
def shelf(thing: str) -> str:
    """Where a thing lies."""
    return shop.look_up("shelf", thing)


clerk = Agent(name="clerk", instructions=INSTRUCTIONS, tools=[price, stock, shelf])


async def answer(request: Request) -> JSONResponse:
    """What the agent says, or what it raised. Its requests go to the address that the body names."""
    asked = await request.json()
    provider = OpenAIProvider(base_url=asked["base_url"], api_key=asked["api_key"], use_responses=asked["responses"])
    settings = ModelSettings(max_tokens=asked["max_tokens"])
    config = RunConfig(model=asked["model"], model_provider=provider, model_settings=settings, tracing_disabled=True)
    try:
        result = await Runner.run(clerk, asked["items"], max_turns=MAX_TURNS, run_config=config)
    except Exception as error:  # at the edge of a run: told to the run
        return JSONResponse({"error": f"{type(error).__name__}: {error}"})
    return JSONResponse({"output": str(result.final_output)})


async def health(request: Request) -> JSONResponse:
    return JSONResponse({})


app = Starlette(routes=[Route("/answer", answer, methods=["POST"]), Route("/health", health)])

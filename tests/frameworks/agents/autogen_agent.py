from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

PEOPLE = {"Oslo": 700_000, "Rome": 2_750_000}
ABILITIES = {
    "vision": False, "function_calling": True, "json_output": True, "structured_output": True, "family": "unknown",
}  # fmt: skip


async def population(city: str) -> str:
    """Number of people in a city."""
    return str(PEOPLE.get(city, "unknown"))


async def agent(question):
    model = OpenAIChatCompletionClient(model="agent", model_info=ABILITIES)
    geographer = AssistantAgent("geographer", model, tools=[population], max_tool_iterations=4)
    result = await geographer.run(task=question)
    return result.messages[-1].to_text()

from agno.agent import Agent
from agno.models.openai import OpenAIChat

PEOPLE = {"Oslo": 700_000, "Rome": 2_750_000}


def population(city: str) -> str:
    """Number of people in a city."""
    return str(PEOPLE.get(city, "unknown"))


async def agent(question):
    geographer = Agent(
        model=OpenAIChat(id="agent"), tools=[population], instructions="Answer with the tools.", tool_call_limit=6
    )
    result = await geographer.arun(question)
    return result.content

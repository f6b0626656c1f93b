from ag2 import Agent
from ag2.config import OpenAIConfig

PEOPLE = {"Oslo": 700_000, "Rome": 2_750_000}


def population(city: str) -> str:
    """Number of people in a city."""
    return str(PEOPLE.get(city, "unknown"))


async def agent(question):
    geographer = Agent("geographer", "Answer with the tools.", config=OpenAIConfig("agent"), tools=[population])
    reply = await geographer.ask(question)
    return reply.body

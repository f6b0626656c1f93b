from pydantic_ai import Agent

PEOPLE = {"Oslo": 700_000, "Rome": 2_750_000}


def population(city: str) -> str:
    """Number of people in a city."""
    return str(PEOPLE.get(city, "unknown"))


async def agent(question):
    geographer = Agent("openai:agent", instructions="Answer with the tools.", tools=[population])
    result = await geographer.run(question)
    return result.output

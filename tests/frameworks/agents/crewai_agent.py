from crewai import LLM, Agent
from crewai.tools import tool

PEOPLE = {"Oslo": 700_000, "Rome": 2_750_000}


@tool("population")
def population(city: str) -> str:
    """Number of people in a city."""
    return str(PEOPLE.get(city, "unknown"))


async def agent(question):
    geographer = Agent(
        role="geographer",
        goal="Answer questions about cities.",
        backstory="You look numbers up before you answer.",
        llm=LLM(model="agent", custom_openai=True),
        tools=[population],
        max_iter=6,
    )
    result = await geographer.kickoff_async(question)
    return result.raw

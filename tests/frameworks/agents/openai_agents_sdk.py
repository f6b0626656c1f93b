from agents import Agent, Runner, function_tool, set_tracing_disabled

PEOPLE = {"Oslo": 700_000, "Rome": 2_750_000}
set_tracing_disabled(True)


@function_tool
def population(city: str) -> str:
    """Number of people in a city."""
    return str(PEOPLE.get(city, "unknown"))


geographer = Agent(name="geographer", instructions="Answer with the tools.", model="agent", tools=[population])


async def agent(question):
    result = await Runner.run(geographer, question, max_turns=6)
    return result.final_output

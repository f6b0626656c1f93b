from smolagents import OpenAIServerModel, ToolCallingAgent, tool

PEOPLE = {"Oslo": 700_000, "Rome": 2_750_000}


@tool
def population(city: str) -> str:
    """Number of people in a city.

    Args:
        city: Name of the city.
    """
    return str(PEOPLE.get(city, "unknown"))


def agent(question):
    model = OpenAIServerModel("agent", max_tokens=256)
    geographer = ToolCallingAgent(tools=[population], model=model, max_steps=6, verbosity_level=0)
    return str(geographer.run(question))

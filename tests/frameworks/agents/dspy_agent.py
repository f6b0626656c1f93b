import dspy

PEOPLE = {"Oslo": 700_000, "Rome": 2_750_000}


def population(city: str) -> str:
    """Number of people in a city."""
    return str(PEOPLE.get(city, "unknown"))


async def agent(question):
    model = dspy.LM("openai/agent", temperature=1.0, cache=False)
    geographer = dspy.ReAct("question -> answer", tools=[population], max_iters=4)
    with dspy.context(lm=model):
        result = await geographer.acall(question=question)
    return result.answer

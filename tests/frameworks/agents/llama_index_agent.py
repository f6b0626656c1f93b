import os

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike

PEOPLE = {"Oslo": 700_000, "Rome": 2_750_000}


def population(city: str) -> str:
    """Number of people in a city."""
    return str(PEOPLE.get(city, "unknown"))


async def agent(question):
    model = OpenAILike(
        model="agent",
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        is_chat_model=True,
        is_function_calling_model=True,
        temperature=1.0,
    )
    geographer = FunctionAgent(llm=model, tools=[population], system_prompt="Answer with the tools.")
    return str(await geographer.run(user_msg=question, max_iterations=6))

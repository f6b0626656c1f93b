from google.adk.agents import Agent
from google.adk.agents.run_config import RunConfig
from google.adk.integrations.openai import OpenAILlm
from google.adk.runners import InMemoryRunner
from google.genai import types

PEOPLE = {"Oslo": 700_000, "Rome": 2_750_000}


def population(city: str) -> str:
    """Number of people in a city."""
    return str(PEOPLE.get(city, "unknown"))


geographer = Agent(
    name="geographer", model=OpenAILlm(model="agent"), instruction="Answer with the tools.", tools=[population]
)


async def agent(question):
    runner = InMemoryRunner(geographer, app_name="cities")
    session = await runner.session_service.create_session(app_name="cities", user_id="user")
    message = types.Content(role="user", parts=[types.Part(text=question)])
    answer = ""
    async for event in runner.run_async(
        user_id="user", session_id=session.id, new_message=message, run_config=RunConfig(max_llm_calls=6)
    ):
        if event.is_final_response() and event.content:
            answer = "".join(part.text or "" for part in event.content.parts)
    return answer

from anthropic import AsyncAnthropic

PEOPLE = {"Oslo": 700_000, "Rome": 2_750_000}
TOOL = {
    "name": "population",
    "description": "Number of people in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def population(city: str) -> str:
    return str(PEOPLE.get(city, "unknown"))


async def agent(question):
    client = AsyncAnthropic()
    messages = [{"role": "user", "content": question}]
    for _ in range(6):
        async with client.messages.stream(
            model="agent", max_tokens=256, system="Answer with the tools.", messages=messages, tools=[TOOL]
        ) as stream:
            answer = await stream.get_final_message()
        messages.append({"role": "assistant", "content": answer.content})
        calls = [block for block in answer.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in answer.content if block.type == "text")
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": population(**call.input)} for call in calls
        ]
        messages.append({"role": "user", "content": results})

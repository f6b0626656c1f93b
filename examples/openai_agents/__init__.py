"""An agent of the OpenAI Agents SDK, in a process with an environment of its own."""

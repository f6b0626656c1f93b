import asyncio
import os
from asyncio.subprocess import PIPE

COMMAND = os.environ["AGENT_COMMAND"].split()  # for example: .venv-ag2/bin/python ag2_program.py


async def agent(question, run):
    program = await asyncio.create_subprocess_exec(
        *COMMAND, question, env={**os.environ, **run.environment}, stdout=PIPE, stderr=PIPE
    )
    said, complained = await program.communicate()
    if program.returncode:
        raise RuntimeError(complained.decode()[-500:])
    return said.decode()

import asyncio
import os
import shlex
from asyncio.subprocess import PIPE

COMMAND = shlex.split(os.environ["AGENT_COMMAND"])  # for example: .venv-ag2/bin/python ag2_program.py


async def agent(question, run):
    program = await asyncio.create_subprocess_exec(
        *COMMAND, question, env={**os.environ, **run.environment}, stdout=PIPE, stderr=PIPE
    )
    said, complained = await program.communicate()
    if program.returncode:
        raise RuntimeError(complained.decode()[-500:])
    return said.decode()

"""A server that speaks the protocol by hand, and breaks it in the way its argument names."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from typing import Any

KIND = sys.argv[1] if len(sys.argv) > 1 else ""
TOOLS = ["echo", "count", "big", "picture", "grow", "leave_child", "slow_steps", "dawdle", "stop", "pid"]
if KIND == "open":
    TOOLS.append("environment")
state = {"count": 0}


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(value: object) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": str(value)}]}


def grow() -> None:
    TOOLS.remove("echo")
    TOOLS.append("fresh")
    changed()


def changed() -> None:
    send({"method": "notifications/tools/list_changed"})


def call(name: str, arguments: dict[str, Any], token: Any) -> dict[str, Any]:
    match name:
        case "echo":
            return {**text(arguments["text"]), "structuredContent": {"echo": arguments["text"]}}
        case "count":
            state["count"] += 1
            return text(state["count"])
        case "big":
            return {**text("x" * int(arguments["size"])), "structuredContent": {"all": "y" * int(arguments["size"])}}
        case "picture":
            image = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(b"picture").decode()}
            note = {"type": "resource", "resource": {"uri": "memo://1", "text": "a note"}}
            return {"content": [image, note]}
        case "grow":
            grow()
            return text("changed")
        case "leave_child":
            return text(subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).pid)
        case "slow_steps":
            for step in range(3):
                where = {"progressToken": token, "progress": step, "total": 3, "message": f"step {step}"}
                send({"method": "notifications/progress", "params": where})
            return text("done")
        case "dawdle":
            time.sleep(float(arguments["seconds"]))
            return text("at last")
        case "stop":
            print("out of coffee", file=sys.stderr, flush=True)
            os._exit(3)
        case "pid":
            return text(os.getpid())
        case "environment":
            return text("\n".join(f"{name}={value}" for name, value in os.environ.items()))
        case _:
            raise KeyError(name)


def main() -> None:
    if KIND == "deaf":
        time.sleep(600)
    for line in sys.stdin:
        message = json.loads(line)
        method, params, number = message["method"], message.get("params") or {}, message.get("id")
        if number is None:
            continue
        if KIND == "garbage":
            sys.stdout.buffer.write(b"\xff\xfe this is no JSON\n[1, 2\n\n")
            sys.stdout.flush()
        if method == "initialize":
            if KIND == "hasty":
                changed()
            info = {"name": "odd", "version": "0.9"}
            capabilities = {"tools": {"listChanged": True}}
            version = params["protocolVersion"]
            send({"id": number, "result": {"protocolVersion": version, "capabilities": capabilities,
                                           "serverInfo": info, "instructions": "Handle with care."}})  # fmt: skip
        elif method == "tools/list" and KIND == "written":  # by hand, in a file: JSON that no library would write
            with open(sys.argv[2]) as file:
                sys.stdout.write(f'{{"jsonrpc":"2.0","id":{number},"result":{{"tools":{file.read()}}}}}\n')
            sys.stdout.flush()
        elif method == "tools/list":
            one_page = int(params.get("cursor") or 0)
            names = TOOLS[one_page : one_page + 4]
            more = {"nextCursor": str(one_page + 4)} if KIND == "endless" or one_page + 4 < len(TOOLS) else {}
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
            if KIND == "patterns":  # of which Python's `re` needs exponential time
                echo = {"type": "string", "pattern": "^(a|aa)+$"}
                tools = [{**tool, "outputSchema": {"type": "object", "properties": {"echo": echo}}} for tool in tools]
            if KIND == "restless" and not more and "echo" in TOOLS:
                grow()
            send({"id": number, "result": {"tools": tools, **more}})
        elif method == "tools/call" and KIND == "deep":
            deep = "[" * 10_000 + "]" * 10_000
            answer = {"echo": f'"result":{{"content":[],"structuredContent":{{"deep":{deep}}}}}',
                      "count": f'"error":{{"code":-32000,"message":"no","data":{deep}}}'}[params["name"]]  # fmt: skip
            sys.stdout.write(f'{{"jsonrpc":"2.0","id":{number},{answer}}}\n')
            sys.stdout.flush()
        elif method == "tools/call" and params["name"] in TOOLS:
            token = (params.get("_meta") or {}).get("progressToken")
            send({"id": number, "result": call(params["name"], params.get("arguments") or {}, token)})
        else:
            send({"id": number, "error": {"code": -32601, "message": f"no {method} {params.get('name', '')}"}})


main()

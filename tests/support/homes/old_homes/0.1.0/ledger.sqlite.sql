BEGIN TRANSACTION;
CREATE TABLE completions (
    id TEXT PRIMARY KEY,
    created REAL NOT NULL,
    policy TEXT,
    version INTEGER,
    rollout TEXT,
    status TEXT NOT NULL,
    record TEXT NOT NULL
) STRICT;
INSERT INTO "completions" VALUES('chatcmpl-1',10.0,'agent',1,'ro-1','complete','{"id": "chatcmpl-1", "created": 10.0, "server_id": "s", "base_model": "b", "tokenizer": "t", "policy": "agent", "version": 1, "model": null, "rollout": "ro-1", "status": "complete", "untrainable": null, "finish_reason": null, "sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "max_tokens": null, "n": 1, "seed": null}, "constrained": [], "dropped": [], "prompt_token_ids": [1, 2], "token_ids": [3, 4], "logprobs": [-0.5, -0.25], "hint": null, "request": {"messages": [{"role": "user", "content": "say a"}]}, "message": {"content": "a \ud83d"}, "continues": null, "continuation": null}');
INSERT INTO "completions" VALUES('chatcmpl-2',20.0,'agent',1,'ro-1','aborted','{"id":"chatcmpl-2","created":20.0,"server_id":"s","base_model":"b","tokenizer":"t","policy":"agent","version":1,"model":null,"rollout":"ro-1","status":"aborted","untrainable":null,"finish_reason":null,"sampling":{"temperature":1.0,"top_p":1.0,"top_k":0,"min_p":0.0,"presence_penalty":0.0,"frequency_penalty":0.0,"repetition_penalty":1.0,"max_tokens":null,"n":1,"seed":null},"constrained":[],"dropped":[],"prompt_token_ids":[1,2],"token_ids":[3,4],"logprobs":[-0.5,-0.25],"hint":null,"request":{},"message":null,"continues":null,"continuation":null}');
INSERT INTO "completions" VALUES('chatcmpl-3',30.0,NULL,NULL,NULL,'complete','{"id":"chatcmpl-3","created":30.0,"server_id":"s","base_model":"b","tokenizer":"t","policy":null,"version":null,"model":null,"rollout":null,"status":"complete","untrainable":null,"finish_reason":null,"sampling":{"temperature":1.0,"top_p":1.0,"top_k":0,"min_p":0.0,"presence_penalty":0.0,"frequency_penalty":0.0,"repetition_penalty":1.0,"max_tokens":null,"n":1,"seed":null},"constrained":[],"dropped":[],"prompt_token_ids":[1,2],"token_ids":[3,4],"logprobs":[-0.5,-0.25],"hint":null,"request":{},"message":null,"continues":null,"continuation":null}');
CREATE TABLE places (last INTEGER NOT NULL) STRICT;
CREATE INDEX completions_created ON completions (created);
CREATE INDEX completions_rollout ON completions (rollout, created) WHERE rollout IS NOT NULL;
COMMIT;
PRAGMA user_version = 0;

BEGIN TRANSACTION;
CREATE TABLE autopilot_history (policy TEXT NOT NULL, record TEXT NOT NULL) STRICT;
INSERT INTO "autopilot_history" VALUES('agent','{"time":2.0,"policy":"agent","event":"started","version":null,"reason":"asked","numbers":{}}');
CREATE TABLE autopilots (policy TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT;
INSERT INTO "autopilots" VALUES('agent','{"policy":"agent","created":1.0,"champion":0,"promotions":0,"phase":"collecting","steps":0,"key":"","runs":[],"tried":[],"candidate":null,"since":null,"verdict":null,"reason":"","numbers":{},"pause":null,"accepted":[],"take_over":false,"signals":[]}');
CREATE TABLE begun (id TEXT PRIMARY KEY, started REAL NOT NULL, record TEXT NOT NULL) STRICT;
INSERT INTO "begun" VALUES('tr-begun',30.0,'{"id":"tr-begun","scenario":{"id":"s","input":"say b","metadata":{}},"completions":[],"tool_calls":[],"nodes":[],"output":null,"error":null,"reward":null,"reward_error":null,"reward_reason":null,"judgement":null,"independent_reward_error":null,"node_rewards":null,"metrics":{},"reward_source":null,"evaluation":false,"hints":{},"imported":null,"temperature":null,"requested_version":null,"rollout_id":null,"graph_id":null,"assistant_id":null,"thread_id":null,"resumes":null,"run_id":null,"metadata":{},"started":30.0,"seconds":0.0}');
CREATE TABLE completions (trajectory TEXT NOT NULL, record TEXT NOT NULL) STRICT;
INSERT INTO "completions" VALUES('tr-begun','{"node":null,"agent":null,"path":[],"namespace":"","step":null,"branch":null,"attempt":null,"parent":null,"id":"chatcmpl-3","model":"agent","version":1,"message":null,"messages":[],"error":null,"superseded":null,"cached":false,"prompt_tokens":null,"cached_tokens":null,"sampled_tokens":null,"reward":null,"started":30.0,"seconds":0.0}');
CREATE TABLE evaluations (
    key TEXT NOT NULL, version INTEGER NOT NULL, trajectories TEXT NOT NULL, PRIMARY KEY (key, version)
) STRICT;
INSERT INTO "evaluations" VALUES('held out',1,'["tr-2"]');
CREATE TABLE resumed (trajectory TEXT PRIMARY KEY, first TEXT NOT NULL) STRICT;
CREATE TABLE scores (trajectory TEXT NOT NULL, time REAL NOT NULL, record TEXT NOT NULL) STRICT;
INSERT INTO "scores" VALUES('tr-1',1795421342.46419,'{"reward":0.5,"reward_error":null,"reward_reason":null,"reward_source":"feedback","independent_reward_error":null,"judgement":null,"node_rewards":null,"completions":{},"parts":{"right":1.0}}');
CREATE TABLE steps (
    policy TEXT NOT NULL, step TEXT NOT NULL, trajectory TEXT NOT NULL, ended INTEGER NOT NULL DEFAULT 0,
    version INTEGER, PRIMARY KEY (policy, step, trajectory)
) STRICT;
INSERT INTO "steps" VALUES('agent','step-1','tr-1',1,1);
CREATE TABLE trajectories (
    id TEXT PRIMARY KEY,
    started REAL NOT NULL,
    scenario TEXT NOT NULL,
    graph TEXT,
    thread TEXT,
    run TEXT,
    error TEXT,
    record TEXT NOT NULL
) STRICT;
INSERT INTO "trajectories" VALUES('tr-1',10.0,'s',NULL,'t',NULL,NULL,'{"id":"tr-1","scenario":{"id":"s","input":"say a","metadata":{}},"completions":[{"node":null,"agent":null,"path":[],"namespace":"","step":null,"branch":null,"attempt":null,"parent":null,"id":"chatcmpl-1","model":"agent","version":1,"message":{"content":"a"},"messages":[],"error":null,"superseded":null,"cached":false,"prompt_tokens":null,"cached_tokens":null,"sampled_tokens":null,"reward":null,"started":10.0,"seconds":0.0}],"tool_calls":[],"nodes":[],"output":null,"error":null,"reward":null,"reward_error":null,"reward_reason":null,"judgement":null,"independent_reward_error":null,"node_rewards":null,"metrics":{},"reward_source":null,"evaluation":false,"hints":{},"imported":null,"temperature":null,"requested_version":null,"rollout_id":null,"graph_id":null,"assistant_id":null,"thread_id":"t","resumes":null,"run_id":null,"metadata":{},"started":10.0,"seconds":0.0}');
INSERT INTO "trajectories" VALUES('tr-2',20.0,'s',NULL,'t',NULL,NULL,'{"id":"tr-2","scenario":{"id":"s","input":"say a","metadata":{}},"completions":[{"node":null,"agent":null,"path":[],"namespace":"","step":null,"branch":null,"attempt":null,"parent":null,"id":"chatcmpl-2","model":"agent","version":1,"message":{"content":"a"},"messages":[],"error":null,"superseded":null,"cached":false,"prompt_tokens":null,"cached_tokens":null,"sampled_tokens":null,"reward":null,"started":20.0,"seconds":0.0}],"tool_calls":[],"nodes":[],"output":null,"error":null,"reward":null,"reward_error":null,"reward_reason":null,"judgement":null,"independent_reward_error":null,"node_rewards":null,"metrics":{},"reward_source":null,"evaluation":false,"hints":{},"imported":null,"temperature":null,"requested_version":null,"rollout_id":null,"graph_id":null,"assistant_id":null,"thread_id":"t","resumes":null,"run_id":null,"metadata":{},"started":20.0,"seconds":0.0}');
CREATE INDEX trajectories_started ON trajectories (started);
CREATE INDEX trajectories_scenario ON trajectories (scenario);
CREATE INDEX trajectories_run ON trajectories (run);
CREATE INDEX trajectories_thread ON trajectories (thread);
CREATE INDEX completions_trajectory ON completions (trajectory);
CREATE INDEX resumed_first ON resumed (first);
CREATE INDEX scores_trajectory ON scores (trajectory);
COMMIT;
PRAGMA user_version = 0;

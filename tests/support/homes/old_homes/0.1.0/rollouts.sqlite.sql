BEGIN TRANSACTION;
CREATE TABLE draws (
    policy TEXT NOT NULL, rollout TEXT NOT NULL, trial REAL NOT NULL, version INTEGER NOT NULL,
    taken INTEGER NOT NULL, time REAL NOT NULL, PRIMARY KEY (policy, rollout)
) STRICT;
INSERT INTO "draws" VALUES('agent','ro-1',5.0,1,1,1.79542134234117794037e+09);
CREATE TABLE policies (rollout TEXT NOT NULL, policy TEXT NOT NULL, PRIMARY KEY (rollout, policy)) STRICT;
INSERT INTO "policies" VALUES('ro-1','agent');
CREATE TABLE rewards (rollout TEXT NOT NULL, record TEXT NOT NULL) STRICT;
INSERT INTO "rewards" VALUES('ro-1','{"reward":0.25,"metrics":{},"reason":null,"source":"person","scenario":null,"time":1795421342.2482429}');
CREATE TABLE rollouts (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    created REAL NOT NULL,
    changed REAL NOT NULL,
    spec TEXT
) STRICT;
INSERT INTO "rollouts" VALUES(1,'ro-1',1.79542134222581577307e+09,1.79542134224880719182e+09,'{"scenario":{"id":"s","input":"say a","metadata":{}},"version":null,"temperature":1.0,"hints":{},"evaluation":false,"metadata":{}}');
CREATE TABLE run_minutes (
    minute INTEGER NOT NULL, policy TEXT NOT NULL, completions INTEGER NOT NULL, tokens INTEGER NOT NULL,
    failed INTEGER NOT NULL, PRIMARY KEY (minute, policy)
) STRICT, WITHOUT ROWID;
INSERT INTO "run_minutes" VALUES(0,'',1,2,0);
INSERT INTO "run_minutes" VALUES(0,'agent',2,4,1);
CREATE TABLE run_sources (source TEXT PRIMARY KEY, place TEXT NOT NULL) STRICT;
INSERT INTO "run_sources" VALUES('completions without a rollout','1');
INSERT INTO "run_sources" VALUES('ledger','3');
INSERT INTO "run_sources" VALUES('jobs','job-1');
CREATE TABLE run_steps (
    run INTEGER NOT NULL, job TEXT NOT NULL, policy TEXT NOT NULL, reference TEXT NOT NULL, reward REAL,
    PRIMARY KEY (run, job, reference)
) STRICT, WITHOUT ROWID;
INSERT INTO "run_steps" VALUES(1,'job-1','agent','tr-1',0.25);
CREATE TABLE run_traces (run INTEGER PRIMARY KEY, record BLOB NOT NULL) STRICT;
INSERT INTO "run_traces" VALUES(1,X'789C6D90C16E02310C447FA5F239ADE0BABF82506425860DCAC62BC76985D0FE7B1DD84550F596791EC5E3B9418A3080CAE71E1CD4400525310CB707AF0653999BF6375E3FD0F4448A1115CDB42C0E0A47AA301C8E0E024F73264D5C56A0CCD907CC79D5DCF4FE5769393B2011964D08FDA0C477E5FF717821AC5CFEC0CA4D026DF0D2E299262ACF4D3DA37F58EBC6EC0C49A1F62B2CCA37E6863D390C27CC951C8CA9E83A3D0BCEA34FCF743A5A88F8025E2BB1161545C986FBDDD7CE24052E7DEF5D653AA9E75EC2E1B8FC02E711840A');
CREATE TABLE run_versions (
    run INTEGER NOT NULL, policy TEXT NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (run, policy, version)
) STRICT, WITHOUT ROWID;
INSERT INTO "run_versions" VALUES(1,'agent',1);
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    started REAL NOT NULL,
    changed REAL NOT NULL,
    seconds REAL NOT NULL DEFAULT 0,
    trajectory TEXT,
    policy TEXT,
    version INTEGER,
    several INTEGER NOT NULL DEFAULT 0,
    scenario TEXT,
    reward REAL,
    rewarded_by TEXT,
    failed TEXT,
    evaluation INTEGER NOT NULL DEFAULT 0,
    traced INTEGER NOT NULL DEFAULT 0,
    graph TEXT,
    calls INTEGER NOT NULL DEFAULT 0,
    tokens INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO "runs" VALUES(1,'ro-1',10.0,1.79542134232077598568e+09,10.0,'tr-1','agent',1,0,'s',0.25,'person',NULL,0,1,NULL,2,4);
CREATE INDEX rewards_rollout ON rewards (rollout);
CREATE INDEX runs_started ON runs (started);
CREATE INDEX runs_changed ON runs (changed);
CREATE INDEX runs_policy ON runs (policy, version, started);
CREATE INDEX runs_scenario ON runs (scenario, started) WHERE scenario IS NOT NULL;
CREATE INDEX runs_evaluation ON runs (policy, version, reward) WHERE evaluation = 1;
CREATE INDEX runs_trajectory ON runs (trajectory) WHERE trajectory IS NOT NULL;
CREATE INDEX run_steps_job ON run_steps (job);
CREATE INDEX draws_trial ON draws (policy, trial);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('runs',6);
INSERT INTO "sqlite_sequence" VALUES('rollouts',2);
COMMIT;
CREATE VIRTUAL TABLE run_texts USING fts5 (text);
INSERT INTO run_texts (rowid, text) VALUES (1, 'say a
a');
PRAGMA user_version = 0;

"""One request for a completion, from its bytes to its answer. `gateway.py` calls the stages in this order:

1. parse (`parser.py`, `body.py`, `parameters.py`): the bytes become a `ChatRequest`, checked once. `client_api.py`,
   `completions.py`, `messages/` and `responses/` translate the requests of other client APIs first.
2. resolve (`resolver.py`): the policy and the version that answer, leased to the rollout: a `Source`.
3. prompt (`splice/`): the tokens of the conversation's earlier turn, or what the engine renders: a `Prompt`.
4. sample (`sampler.py`): an engine that has the version takes the request, in an `Attempt`.
5. record (`recorder.py`): the answer's exact tokens become rows of the ledger.
6. answer (`answer.py`, and the client API): the client gets the answer, in its own API.
"""

"""Before the first step: training beside a `langgraph.json` (`init`), and the server to use (`connect`)."""

"""Several processes of one server that answer completions on one port (`serve --gateways`). The parent decides and
writes; see docs/design/gateway.md."""

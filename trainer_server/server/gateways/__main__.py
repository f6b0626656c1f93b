"""`python -m trainer_server.server.gateways LISTENER CHANNEL`: a gateway process, with two sockets of its parent."""

import socket
import sys

from trainer_server.server.gateways.process import run

if __name__ == "__main__":
    run(*(socket.socket(fileno=int(number)) for number in sys.argv[1:]))

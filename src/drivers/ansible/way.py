# ssh's ProxyCommand under ProxyUseFdpass: connects to a Unix socket and gives ssh the connection.
import socket
import sys

way = socket.socket(socket.AF_UNIX)
way.connect(sys.argv[1])
out = socket.socket(fileno=1)
socket.send_fds(out, [b"\0"], [way.fileno()])

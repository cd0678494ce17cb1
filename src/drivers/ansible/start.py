# Starts ansible-playbook in its sandbox: closes what this process may have inherited, and limits
# memory and processor time of each process.
import os
import resource
import sys

os.closerange(3, 1 << 20)
for limit, value in ((resource.RLIMIT_AS, 2 << 30), (resource.RLIMIT_CPU, 1200), (resource.RLIMIT_CORE, 0)):
    resource.setrlimit(limit, (value, value))
os.execv(sys.argv[1], sys.argv[1:])

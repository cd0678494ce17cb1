# Starts ansible-playbook in its sandbox: closes what this process may have inherited, and limits
# memory and processor time of each process.
import os
import resource
import sys

os.closerange(3, 1 << 20)
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
# At the soft limit SIGXCPU ends a process. At an equal hard one it would be SIGKILL, as for want of memory.
resource.setrlimit(resource.RLIMIT_CPU, (1200, 1260))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.execv(sys.argv[1], sys.argv[1:])

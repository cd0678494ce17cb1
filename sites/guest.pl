# The first process of a host. It holds the host's namespaces and reaps its orphans. Its standard
# input is a pipe of the site's owner. When the pipe closes, at a stop or at the owner's death, this
# process ends, and the kernel ends every process of the host with it.
use strict;
use warnings;
use POSIX ':sys_wait_h';
$0 = 'init';
$SIG{CHLD} = sub { 1 while waitpid(-1, WNOHANG) > 0 };
$| = 1;
print "up\n";
open STDOUT, '>', '/dev/null';
for (;;) {
    my $got = sysread STDIN, my $byte, 1;
    exit 0 if defined $got && $got == 0;
    exit 0 if !defined $got && !$!{EINTR};
}

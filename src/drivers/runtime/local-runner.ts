import { spawn, type ChildProcess } from 'node:child_process'
import { createInterface } from 'node:readline'
import { DriverError } from './driver.ts'

/** What a runner is asked to start. Paths are absolute; `timeoutSeconds` 0 means none; `facts` is one line that opens the record. */
export interface RunnerTask {
  name: string
  control: string
  directory: string
  workingDirectory: string
  timeoutSeconds: number
  timeoutGraceSeconds: number
  facts: string
  argv: readonly string[]
  environment: Readonly<Record<string, string>>
}

/** `started`: by us, now. `known`: somebody started this name before. `failed`: the site could not; nothing was started. */
export type RunnerAnswer = { answer: 'started'; pid: number } | { answer: 'known' } | { answer: 'failed'; message: string }

/** Called in this order, both before a later answer can be seen; `ended` after the record is complete. */
export interface RunnerCallbacks {
  started: () => void
  ended: () => void
}

export interface Runner {
  /** Resolves once the process runs, or will not. One task at a time. */
  start(task: RunnerTask, callbacks: RunnerCallbacks): Promise<RunnerAnswer>
  /** No more requests: ends now if idle, else after its task, which goes on untouched. */
  release(): void
}

/**
 * wait4, prctl, setsid, setitimer, clock_gettime, exit_group, dup3: perl-base has no module for them; rt_sigaction, execve: each page that
 * Perl's own ones write to between fork and exec is copied, half a microsecond each.
 */
const systemCalls: Partial<Record<NodeJS.Architecture, readonly number[]>> = {
  x64: [61, 157, 112, 38, 228, 231, 13, 292, 59],
  arm64: [260, 167, 157, 103, 113, 94, 134, 24, 221],
}

/**
 * A runner is a small resident process that starts one task after the other and waits for each. A task so costs one fork and one
 * exec (0.4 ms), a third of a spawn out of Node with a wrapper shell. It is Perl because perl-base is part of every
 * Debian and Ubuntu and gives fork, setsid, wait4 and interval timers without a compiler.
 *
 * It lives in a session of its own and needs nobody: when the daemon dies it sees its task through, records the end, and
 * leaves at the end of its standard input. It is the subreaper of its tasks, so a descendant cannot escape it by forking twice
 * or by a session of its own. A task's end is the end of its first process; what is left then is killed before the exit is recorded.
 *
 * Request: 32-bit length, then fields joined by NUL. Answers: lines `started PID`, `known`, `failed TEXT`, `ended`.
 */
const program = String.raw`
use strict;
my ($WAIT4, $PRCTL, $SETSID, $SETITIMER, $CLOCK, $EXIT, $SIGACTION, $DUP3, $EXECVE) = map { $_ + 0 } splice @ARGV, 0, 9;
my $vmstat = shift @ARGV;
my ($WRONLY, $CREAT, $EXCL, $APPEND) = (01, 0100, 0200, 02000);
my ($ENOENT, $EINTR, $ENOEXEC, $ECHILD, $EEXIST) = (2, 4, 8, 10, 17);
$0 = 'orrery-runner';
# What the daemon itself was started with must not reach a task.
opendir my $open, '/proc/self/fd' or die "no /proc: $!\n";
my @inherited = grep { /^\d+$/ && $_ > 2 } readdir $open;
closedir $open;
for (@inherited) { if (open my $file, '<&=', $_) { close $file } }
# Handlers, as what is ignored would be ignored by tasks too.
$SIG{$_} = sub { } for qw(PIPE HUP INT TERM ALRM);
umask 022;
# A task finds its own standard input, output and error where it is forked: what is said to the daemon goes elsewhere.
open my $requests, '<&', \*STDIN or die "no standard input: $!\n";
open my $answers, '>&', \*STDOUT or die "no standard output: $!\n";
open my $complaints, '>&', \*STDERR or die "no standard error: $!\n";
$SIG{__DIE__} = sub { syswrite $complaints, $_[0] };
sysopen my $null, '/dev/null', 0 or die "no /dev/null: $!\n";
syscall($DUP3, fileno $null, 0, 0);
syscall($PRCTL, 36, 1, 0, 0, 0);

my $time = "\0" x 16;
sub now { syscall($CLOCK, $_[0], $time); my ($s, $n) = unpack 'q2', $time; $s + $n / 1e9 }
# In which hundredth of a second since boot it is: what /proc tells of a process that begins now.
sub tick { syscall($CLOCK, 7, $time); my ($s, $n) = unpack 'q2', $time; $s * 100 + int $n / 1e7 }
sub timer { my ($first, $every) = @_; my $t = pack 'q4', int($every), ($every - int $every) * 1e6, int($first), ($first - int $first) * 1e6; syscall($SETITIMER, 0, $t, 0) }
# A task that takes less is told of once, when it has ended: its start by itself would wake the daemon up for nothing.
my $brief = 0.01;
sub slurp { open my $f, '<', $_[0] or return ''; sysread $f, my $text, 65536; $text // '' }
sub birth { my $text = slurp("/proc/$_[0]/stat"); (split ' ', substr($text, rindex($text, ')') + 2), 21)[19] }
sub say_line { syswrite $answers, "$_[0]\n" }

my $boot = slurp('/proc/sys/kernel/random/boot_id'); chomp $boot;
my $birth = birth($$);
my $self = "runner $$ $birth $boot";
my $default = "\0" x 32;
my ($killed, $killed_read) = (0, -10);
sub killed_for_memory { slurp($vmstat) =~ /^oom_kill (\d+)/m ? $1 : 0 }

sub make_directory {
  my $path = shift;
  return 1 if mkdir $path, 0700;
  if ($! == $ENOENT) {
    my ($parent) = $path =~ m{^(.+)/[^/]+$} or return 0;
    return 0 unless mkdir($parent, 0700) || -d $parent || make_directory($parent);
    return 1 if mkdir $path, 0700;
  }
  # One that staging has put there is 0700 already; a folder that others may enter is not ours, and its mode is never touched.
  return 0 unless -d $path;
  $! = $EEXIST;
  !-l $path && ((stat $path)[2] & 0077) == 0;
}

sub children {
  opendir my $d, '/proc' or return ();
  grep { /^\d+$/ && slurp("/proc/$_/stat") =~ /.*\) \S (\d+)/s && $1 == $$ } readdir $d;
}

# Output goes to files of the runner, which a task that wrote something takes with it: most write nothing, and to create a file is
# what costs most on a disk in use.
my ($stem, $out, $err);
sub output {
  my ($kind, $number) = @_;
  sysopen my $file, "$stem.$kind", $WRONLY | $CREAT | $APPEND, 0600 or return;
  syscall($DUP3, fileno $file, $number, 0);
  $file;
}

# The records of some tasks share a file: each has its own name for it. A new inode costs more than all else that is done for a task.
my ($log, $logged, $latest) = (undef, 0, '');
sub claim {
  my $path = shift;
  if ($log && $logged < 32) {
    if (link $latest, $path) {
      # The latest name may have been forgotten and buried since: then it is another file.
      if ((stat $path)[1] == (stat $log)[1]) { $logged++; $latest = $path; return 1 }
      unlink $path;
    } elsif ($! == $EEXIST) { return 0 }
  }
  sysopen my $fresh, $path, $WRONLY | $CREAT | $EXCL | $APPEND, 0600 or return 0;
  ($log, $logged, $latest) = ($fresh, 1, $path);
}

sub run {
  my ($control, $name, $directory, $cwd, $timeout, $timeout_grace, $facts, $count, @rest) = @_;
  my @argv = splice @rest, 0, $count;
  my $path = "$control/$name.task";
  make_directory($directory) or return say_line("failed cannot make $directory: $!");
  $stem = "$control/runner-$$-$birth";
  ($out ||= output('out', 1)) && ($err ||= output('err', 2)) or return say_line("failed cannot write $stem.out and .err: $!");
  if (now(1) - $killed_read > 1) { $killed = killed_for_memory(); $killed_read = now(1) }

  my ($arguments, $environment) = map { pack 'p*x8', @$_ } \@argv, \@rest;
  my ($search) = map { /^PATH=(.*)$/s } @rest;
  my $entered = chdir "$directory/$cwd";
  my $why = "$!";
  # Whether one exists is known here of absolute paths; the others are of the task's directory.
  my @programs = $argv[0] =~ m{/} ? $argv[0] : grep { m{^[^/]} || -e } map { ($_ eq '' ? '.' : $_) . "/$argv[0]" } split /:/, $search // '/bin:/usr/bin', -1;

  # From here on this name is ours, once and for all.
  claim($path) or return say_line($! == $EEXIST ? 'known' : "failed cannot write $path: $!");
  my ($began, $clock) = (now(0), now(1));
  my $head = sprintf "%s %s\n%s %s %.6f\n", $name, $facts, $name, $self, $began;
  my ($runner, $before) = ($$, -s $log);
  my $tick = tick();
  my $pid = (syswrite($log, $head) // 0) == length $head ? fork : undef;
  if (!defined $pid) { my $why = "$!"; truncate $log, $before; unlink $path; return say_line("failed cannot start: $why") }
  if ($pid == 0) {
    syscall($SETSID);
    syscall($PRCTL, 1, 9, 0, 0, 0);
    syscall($EXIT, 125) if getppid() != $runner;
    my $line = "$name task $$ " . ($tick == tick() ? $tick : birth($$)) . "\n";
    if ((syswrite($log, $line) // 0) != length $line) { truncate $log, $before + length $head; syscall($EXIT, 125) }
    # The others fall back by themselves; this one must not be lost until then.
    syscall($SIGACTION, 15, $default, 0, 8);
    if (!$entered) { syswrite $err, "cannot enter the working directory $cwd: $why\n"; syscall($EXIT, 126) }
    # What libc's search does with a program that is there; it knows what to do with a script without a head, and why nothing can be run.
    for (@programs) { syscall($EXECVE, $_, $arguments, $environment); last if $! == $ENOEXEC }
    %ENV = map { /^([^=]+)=(.*)$/s } @rest;
    exec { $argv[0] } @argv;
    my $code = $! == $ENOENT ? 127 : 126;
    syswrite $err, "cannot run $argv[0]: $!\n";
    syscall($EXIT, $code);
  }
  my ($told, $end) = await($control, $name, $pid, $clock, $timeout, $timeout_grace, $killed);
  chdir '/';
  if (-s $out) { rename "$stem.out", "$control/$name.out"; undef $out }
  if (-s $err) { rename "$stem.err", "$control/$name.err"; undef $err }
  my ($length, $line) = (-s $log, sprintf "%s exit %.6f %s\n", $name, $began + now(1) - $clock, $end);
  # A full disk holds the end back, it does not lose it.
  for (;;) {
    last if (syswrite($log, $line) // 0) == length $line || !-e $path;
    truncate $log, $length;
    select undef, undef, undef, 1;
  }
  say_line($told ? 'ended' : "started $pid\nended");
}

my ($ended, $usage) = ("\0" x 4, "\0" x 144);
# Waits for the task and everything that came of it: code, signal, reason, wall and processor seconds, peak bytes.
sub await {
  my ($control, $name, $pid, $clock, $timeout, $grace, $killed_before) = @_;
  my ($status, $told, $reason, $kill_at, $cpu, $peak, %asked) = (undef, 0, '', 0, 0, 0);
  timer($brief, $brief);
  for (;;) {
    # First of all, as what is written before the child has its program is copied. A signal that comes just before wait4 is made up for by the
    # next: the timer and whoever cancels repeat theirs.
    my $one = syscall($WAIT4, -1, $ended, defined $status ? 1 : 0, $usage);
    if ($one > 0) {
      my ($us, $uu, $ss, $su, $max) = unpack 'q5', $usage;
      $cpu += $us + $ss + ($uu + $su) / 1e6;
      $peak = $max if $max > $peak;
      $status = unpack 'l', $ended if $one == $pid;
    } elsif ($one < 0 && $! == $ECHILD) { last
    } elsif ($one == 0) {
      my $signal = $reason && now(1) < $kill_at ? 'TERM' : 'KILL';
      $asked{"$signal $_"}++ || kill $signal, $_ for children();
      select undef, undef, undef, 0.005;
    }
    if (!$told && $one <= 0) {
      say_line("started $pid");
      $told = 1;
      my $left = $timeout + $clock - now(1);
      if ($timeout > 0) { timer($left > $brief ? $left : $brief, 1) } else { timer(0, 0) }
    }
    next if defined $status;
    if (!$reason) {
      # Somebody may be writing it this moment: whoever does repeats his signal.
      if (slurp("$control/$name.cancel") =~ /^(.+)\n/) { $reason = 'cancelled'; $grace = $1 }
      elsif ($timeout > 0 && now(1) - $clock >= $timeout) { $reason = 'timeout' }
      if ($reason) { $kill_at = now(1) + $grace; kill 'TERM', -$pid; timer(0.02, 0.02) }
    } elsif (now(1) >= $kill_at) { kill 'KILL', -$pid }
  }
  my $wall = now(1) - $clock;
  timer(0, 0);
  my ($code, $signal) = (($status >> 8) & 255, $status & 127);
  $reason = 'exited' if $reason eq 'cancelled' && !$code && !$signal;
  # Whoever cancels may have sent its processes the signal himself before this saw the wish.
  $reason = 'cancelled' if !$reason && $signal && -e "$control/$name.cancel";
  if (!$reason && ($signal == 9 || $code == 137)) { $killed = killed_for_memory(); $killed_read = now(1); $reason = 'memory' if $killed > $killed_before }
  ($told, sprintf '%d %d %s %.6f %.6f %d', $code, $signal, $reason || 'exited', $wall, $cpu, $peak * 1024);
}

chdir '/';
my $buffer = '';
for (;;) {
  while (length $buffer < 4 || length $buffer < 4 + unpack 'N', $buffer) {
    my $got = sysread $requests, $buffer, 65536, length $buffer;
    next if !defined $got && $! == $EINTR;
    if (!$got) { unlink "$stem.out", "$stem.err" if $stem; syscall($EXIT, 0) }
  }
  my $length = unpack 'N', $buffer;
  my @fields = split /\0/, substr($buffer, 4, $length), -1;
  substr($buffer, 0, 4 + $length) = '';
  run(@fields);
}
`

function encode(task: RunnerTask): Buffer {
  const environment = Object.entries(task.environment).map(([key, value]) => `${key}=${value}`)
  const numbers = [task.timeoutSeconds, task.timeoutGraceSeconds].map((seconds) => seconds.toFixed(6))
  const fields = [
    task.control,
    task.name,
    task.directory,
    task.workingDirectory,
    ...numbers,
    task.facts,
    String(task.argv.length),
    ...task.argv,
    ...environment,
  ]
  const payload = Buffer.from(fields.join('\0'))
  const head = Buffer.alloc(4)
  head.writeUInt32BE(payload.length)
  return Buffer.concat([head, payload])
}

function parseAnswer(line: string): RunnerAnswer {
  const [word = '', ...rest] = line.split(' ')
  if (word === 'started') return { answer: 'started', pid: Number(rest[0]) }
  if (word === 'known') return { answer: 'known' }
  return { answer: 'failed', message: rest.join(' ') }
}

/**
 * Starts a runner. `onGone` is called when its process has ended, whatever the cause; a task whose `ended` was not called by then
 * has to be looked up by what it left behind.
 *
 * @throws DriverError `refused` on a processor without an entry in the table of system calls.
 */
export function startRunner(options: { perl: string; vmstatFile: string; onGone: () => void }): Runner {
  const numbers = systemCalls[process.arch]
  if (numbers === undefined || process.platform !== 'linux') {
    throw new DriverError(
      'refused',
      `the local runtime runs on Linux on ${Object.keys(systemCalls).join(' and ')}, not on ${process.platform} on ${process.arch}`,
    )
  }
  const child: ChildProcess = spawn(options.perl, ['-e', program, ...numbers.map(String), options.vmstatFile], {
    stdio: ['pipe', 'pipe', 'pipe'],
    // Bound at once: a forked child would look up again whatever its parent has not called yet.
    env: { PATH: '/usr/local/bin:/usr/bin:/bin', LD_BIND_NOW: '1' },
    cwd: '/',
    detached: true,
  })
  const { stdin, stdout, stderr } = child
  if (stdin === null || stdout === null || stderr === null) throw new DriverError('infrastructure', `no pipes to ${options.perl}`)

  let pending: { settle: (answer: RunnerAnswer) => void; callbacks: RunnerCallbacks } | undefined
  let ended: (() => void) | undefined
  let gone: string | undefined

  const fail = (message: string): void => {
    if (gone !== undefined) return
    gone = message
    pending?.settle({ answer: 'failed', message })
    pending = undefined
    options.onGone()
  }
  child.on('error', (error) => fail(`cannot run ${options.perl}: ${error.message}; install perl (Debian: perl-base)`))
  let complaint = ''
  stderr.on('data', (bytes: Buffer) => (complaint = `: ${bytes.toString().trim().slice(0, 500)}`))
  child.on('close', (code, signal) => fail(`the runner of local tasks ended by ${signal ?? `code ${code}`}${complaint}`))
  // A runner that does not listen is of no use; its end, reported above, says why.
  stdin.on('error', () => child.kill('SIGKILL'))
  createInterface({ input: stdout }).on('line', (line) => {
    const waiting = pending
    pending = undefined
    if (line === 'ended') {
      const callback = ended
      ended = undefined
      callback?.()
      // Its process ended before it could say that it runs; its record tells the rest.
      waiting?.settle({ answer: 'known' })
      return
    }
    const answer = parseAnswer(line)
    if (answer.answer === 'started') {
      ended = waiting?.callbacks.ended
      waiting?.callbacks.started()
    }
    waiting?.settle(answer)
  })

  return {
    start: (task, callbacks) =>
      new Promise((settle) => {
        if (gone !== undefined) {
          settle({ answer: 'failed', message: gone })
          return
        }
        pending = { settle, callbacks }
        stdin.write(encode(task))
      }),
    release() {
      stdin.end()
      stdout.destroy()
      stderr.destroy()
      child.unref()
    },
  }
}

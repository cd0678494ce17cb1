// A runner is a small resident process that starts one task of this machine after the other and
// waits for each; runner.ts controls it. A task costs one vfork and one exec, whatever the size of
// the daemon. It is written in Go because the project needs Go anyway, to build Temporal's server,
// and because Go's fork shares memory with the child until exec: an interpreter's fork copies pages
// for 0.4 ms more.
//
// It has a session of its own and needs no other process: when the daemon dies it waits for its
// task, records the end, and exits at the end of its standard input. It is the subreaper of its
// tasks, so a descendant cannot escape it by forking twice or by a session of its own. A task's end
// is the end of its first process; remaining processes are killed before the exit is recorded.
//
// Arguments: the folder of the records (records.ts), the file in which the kernel counts its kills
// for memory, a script for sh that finds the folder for cgroups (contract/cgroups.ts). Request:
// 32-bit length, then fields joined by NUL. Answers: lines `started PID`, `known`, `failed TEXT`,
// `refused TEXT` (no trial helps), `ended`.
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

const (
	// A shorter task is reported once, when it has ended: a report of its start would wake the daemon
	// up for nothing.
	brief = 10 * time.Millisecond
	// The records of several tasks share a file, each with its own name for it: a new inode costs
	// more than all other work for a task.
	recordsPerFile = 32

	// Package syscall has no names for these.
	prSetChildSubreaper = 36
	clockBoottime       = 7
	itimerReal          = 0
	atSymlinkFollow     = 0x400
	pAll                = 0
	wExited             = 0x4
	wNowait             = 0x1000000
)

type request struct {
	name, directory, workingDirectory string
	timeout, grace                    time.Duration
	// Bytes, 0: none. How the limit is to be enforced: `cgroup`, `rlimit`, `none`; empty: the best
	// available way.
	memory            int64
	memoryLimit       string
	facts             string
	argv, environment []string
}

type task struct {
	request
	pid   int
	began time.Time
	// How its memory limit is enforced; empty: it has no limit.
	holds string
	// Both goroutines set it, under the runner's mutex.
	told   bool
	over   bool
	reason string
	killAt time.Time
	// The wait status after reaping.
	status syscall.WaitStatus
	used   time.Duration
	peak   int64
}

type runner struct {
	control, vmstat string
	confinement     confinement
	pid             int
	birth, boot     string
	answers         int
	stdout, stderr  output

	log           int
	logged        int
	logLength     int64
	memoryKills   int
	memoryCounted time.Time

	mutex sync.Mutex
	task  *task
}

// Output goes to files of the runner. A task that wrote something takes them with it: most write
// nothing, and creating a file is the most expensive step on a disk in use.
type output struct {
	path   string
	number int
	file   int
}

func main() {
	// A child dies with the thread that made it (PR_SET_PDEATHSIG); this thread stays until the end.
	runtime.LockOSThread()
	// With one, each wait passes the scheduler's slot to another thread: 0.43 ms of the runner's own
	// time a task instead of 0.25.
	runtime.GOMAXPROCS(2)
	// The daemon's own descriptors must not reach a task.
	for _, name := range namesIn("/proc/self/fd") {
		if file, err := strconv.Atoi(name); err == nil && file > 2 {
			syscall.CloseOnExec(file)
		}
	}
	// A task gets its own standard input, output and error at its start: messages to the daemon use
	// other descriptors.
	requests, answers, complaints := duplicate(0), duplicate(1), duplicate(2)
	defer func() {
		if cause := recover(); cause != nil {
			syscall.Write(complaints, fmt.Appendln(nil, cause))
			os.Exit(1)
		}
	}()
	null, err := syscall.Open("/dev/null", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	must(err)
	must(syscall.Dup3(null, 0, 0))
	must(syscall.Chdir("/"))
	syscall.Umask(0o022)
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)

	pid := os.Getpid()
	r := &runner{
		control: os.Args[1], vmstat: os.Args[2], confinement: confinement{script: os.Args[3]}, pid: pid, birth: birthOf(pid),
		boot: strings.TrimSpace(slurp("/proc/sys/kernel/random/boot_id")), answers: answers, log: -1,
	}
	stem := fmt.Sprintf("%s/runner-%d-%s", r.control, r.pid, r.birth)
	r.stdout, r.stderr = output{stem + ".out", 1, -1}, output{stem + ".err", 2, -1}

	// Caught, because tasks would inherit an ignored signal.
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGPIPE, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGALRM)
	go func() {
		for range signals {
			r.oversee()
		}
	}()

	input := bufio.NewReader(descriptor(requests))
	for {
		var length uint32
		if binary.Read(input, binary.BigEndian, &length) != nil {
			break
		}
		payload := make([]byte, length)
		if _, err := io.ReadFull(input, payload); err != nil {
			break
		}
		r.say(r.run(parse(string(payload))))
	}
	r.confinement.discard()
	syscall.Unlink(r.stdout.path)
	syscall.Unlink(r.stderr.path)
}

func parse(payload string) request {
	fields := strings.Split(payload, "\x00")
	memory, err := strconv.ParseInt(fields[5], 10, 64)
	must(err)
	count, err := strconv.Atoi(fields[8])
	must(err)
	return request{
		name: fields[0], directory: fields[1], workingDirectory: fields[2],
		timeout: parseSeconds(fields[3]), grace: parseSeconds(fields[4]),
		memory: memory, memoryLimit: fields[6],
		facts: fields[7],
		argv:  fields[9 : 9+count], environment: fields[9+count:],
	}
}

// Starts a task and waits for its end, unless its name was started before. The returned text is the
// last message about it.
func (r *runner) run(asked request) string {
	path := r.path(asked.name, "task")
	holds := ""
	if asked.memory > 0 {
		if holds = r.confine(asked); holds == "" {
			return "refused memoryLimit is cgroup, and this account cannot make one here; " +
				"use rlimit or none, or give the account cgroups"
		}
	}
	// The second is its home: `homeOf` of contract/task-script.ts.
	for _, each := range []string{asked.directory, asked.directory + ".home"} {
		if err := makeDirectory(each); err != nil {
			return fmt.Sprintf("failed cannot make %s: %v", each, err)
		}
	}
	for _, out := range []*output{&r.stdout, &r.stderr} {
		if err := out.open(); err != nil {
			return fmt.Sprintf("failed cannot write %s: %v", out.path, err)
		}
	}
	if time.Since(r.memoryCounted) > time.Second {
		r.countMemoryKills()
	}
	killsBefore := r.memoryKills
	notEntered := syscall.Chdir(asked.directory + "/" + asked.workingDirectory)
	defer syscall.Chdir("/")

	// From here on this name belongs to this runner for good.
	if err := r.claim(path); err == syscall.EEXIST {
		return "known"
	} else if err != nil {
		return fmt.Sprintf("failed cannot write %s: %v", path, err)
	}
	t := &task{request: asked, began: time.Now(), holds: holds}
	before := r.logLength
	giveBack := func(err error) string {
		r.shorten(before)
		syscall.Unlink(path)
		return fmt.Sprintf("failed cannot start: %v", err)
	}
	head := fmt.Sprintf("%s %s\n%s runner %d %s %s %s\n", t.name, t.facts, t.name, r.pid, r.birth, r.boot, epoch(t.began))
	if holds != "" {
		head += t.name + " limits " + holds + "\n"
	}
	if err := r.record(head); err != nil {
		return giveBack(err)
	}
	var end string
	if notEntered != nil {
		end = r.refuse(126, "cannot enter the working directory %s: %v", t.workingDirectory, notEntered)
	} else if err := r.start(t); err == nil {
		end = r.await(t, killsBefore)
	} else if isTrouble(err) {
		return giveBack(err)
	} else if err == syscall.ENOENT {
		end = r.refuse(127, "cannot run %s: %v", t.argv[0], err)
	} else {
		end = r.refuse(126, "cannot run %s: %v", t.argv[0], err)
	}
	kept := r.path(t.name, "out")
	if err := r.stdout.deliver(path, kept); err != nil {
		syscall.Write(r.stderr.file, fmt.Appendf(nil, "its standard output could not be kept: %s: %v\n", kept, err))
	}
	_ = r.stderr.deliver(path, r.path(t.name, "err"))
	// A full disk delays the end and does not lose it.
	line := fmt.Sprintf("%s exit %s %s\n", t.name, epoch(t.began.Add(time.Since(t.began))), end)
	for r.record(line) != nil && exists(path) {
		time.Sleep(time.Second)
	}
	if t.told {
		return "ended"
	}
	return fmt.Sprintf("started %d\nended", t.pid)
}

// The end of a task that has no program to run: the message that a shell would print.
func (r *runner) refuse(code int, words string, values ...any) string {
	syscall.Write(r.stderr.file, fmt.Appendf(nil, words+"\n", values...))
	return fmt.Sprintf("%d 0 exited 0 0 0", code)
}

// The machine's fault, not the task's: nothing was started, and another attempt may start.
func isTrouble(err error) bool {
	return err == syscall.EAGAIN || err == syscall.ENOMEM || err == syscall.EMFILE || err == syscall.ENFILE
}

// Runs the program as execvp does: along PATH past files that are missing or cannot run; the shell
// runs a file without a header.
func (r *runner) start(t *task) error {
	attributes := &syscall.ProcAttr{
		Env: t.environment, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	}
	switch t.holds {
	case "cgroup":
		leave, err := r.confinement.enter(attributes.Sys)
		if err != nil {
			return syscall.EAGAIN
		}
		defer leave()
	case "rlimit":
		restore := limitData(t.memory)
		defer func() { restore(t.pid) }()
	}
	tick := ticksSinceBoot()
	failure := error(syscall.ENOENT)
	for _, program := range programs(t.argv[0], t.environment) {
		pid, err := syscall.ForkExec(program, t.argv, attributes)
		if err == syscall.ENOEXEC {
			pid, err = syscall.ForkExec("/bin/sh", append([]string{"sh", program}, t.argv[1:]...), attributes)
		}
		if err == nil {
			t.pid = pid
			birth := strconv.FormatInt(tick, 10)
			if ticksSinceBoot() != tick {
				birth = birthOf(pid)
			}
			// Without it the task is found through its runner or its mark.
			_ = r.record(fmt.Sprintf("%s task %d %s\n", t.name, pid, birth))
			return nil
		}
		if err != syscall.ENOENT && err != syscall.ENOTDIR {
			failure = err
		}
		if failure != syscall.ENOENT && failure != syscall.EACCES {
			break
		}
	}
	return failure
}

// Candidate paths of a program. Only absolute paths can be checked here; the others are relative to
// the task's directory.
func programs(name string, environment []string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	search := "/bin:/usr/bin"
	for _, line := range environment {
		if value, found := strings.CutPrefix(line, "PATH="); found {
			search = value
		}
	}
	var places []string
	for _, folder := range strings.Split(search, ":") {
		if folder == "" {
			folder = "."
		}
		if path := folder + "/" + name; folder[0] != '/' || exists(path) {
			places = append(places, path)
		}
	}
	return places
}

// Waits for the task and all its descendants. Code, signal, reason, wall and processor seconds,
// peak bytes.
func (r *runner) await(t *task, killsBefore int) string {
	// Set before the task is visible: oversee sets the timer anew.
	setTimer(brief, brief)
	r.mutex.Lock()
	r.task = t
	r.mutex.Unlock()
	r.awaitFirst(t)
	setTimer(0, 0)
	r.endOthers(t)
	wall := time.Since(t.began)

	code, killer := max(t.status.ExitStatus(), 0), 0
	if t.status.Signaled() {
		killer = int(t.status.Signal())
	}
	if t.reason == "cancelled" && code == 0 && killer == 0 {
		t.reason = "exited"
	}
	// A cancelling process may have signalled the task's processes itself before this runner saw the
	// cancel mark.
	if t.reason == "" && killer != 0 && exists(r.path(t.name, "cancel")) {
		t.reason = "cancelled"
	}
	if t.holds == "cgroup" {
		if kills, peak := r.confinement.settle(); kills > 0 && t.reason == "" && (code != 0 || killer != 0) {
			t.reason, t.peak = "memory", max(t.peak, peak)
		}
	}
	if t.reason == "" && (killer == int(syscall.SIGKILL) || code == 128+int(syscall.SIGKILL)) {
		if r.countMemoryKills(); r.memoryKills > killsBefore {
			t.reason = "memory"
		}
	}
	if t.reason == "" {
		t.reason = "exited"
	}
	return fmt.Sprintf("%d %d %s %.6f %.6f %d", code, killer, t.reason, wall.Seconds(), t.used.Seconds(), t.peak)
}

// Returns when the task's first process has ended. It reaps that process only when no signal goes
// to it any more: another process may get its number afterwards.
func (r *runner) awaitFirst(t *task) {
	for {
		var ended [128]byte
		_, _, failed := syscall.Syscall6(syscall.SYS_WAITID, pAll, 0, uintptr(unsafe.Pointer(&ended)), wExited|wNowait, 0, 0)
		if failed == syscall.EINTR {
			continue
		}
		if failed != 0 {
			panic("waitid: " + failed.Error())
		}
		// si_pid of a 64-bit siginfo_t. A descendant may be the runner's child by now and end first.
		pid := int(binary.NativeEndian.Uint32(ended[16:]))
		if pid == t.pid {
			break
		}
		// By its number: the task itself may have ended by now.
		t.reap(pid)
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	t.over = true
}

// Reaps all children, and ends live ones: politely while the task itself would still have time. The
// pauses grow while nothing changes: a child may hang in the kernel for hours, and a look at all
// processes costs a part of a processor.
func (r *runner) endOthers(t *task) {
	const shortest, longest = 5 * time.Millisecond, 500 * time.Millisecond
	asked := map[string]bool{}
	for pause := shortest; ; pause = min(pause+pause/8, longest) {
		pid, err := t.reap(-1)
		if err != nil {
			return
		}
		if pid > 0 {
			pause = 0
			continue
		}
		r.tell(t)
		signal := syscall.SIGKILL
		if t.reason != "" && time.Now().Before(t.killAt) {
			signal = syscall.SIGTERM
		}
		for _, child := range r.children() {
			if key := fmt.Sprint(signal, child); !asked[key] {
				asked[key] = true
				syscall.Kill(child, signal)
				pause = shortest
			}
		}
		pause = max(pause, shortest)
		time.Sleep(pause)
	}
}

// Reaps one child, or any (-1), and counts its resource use: 0 if none has ended, an error if there
// is none.
func (t *task) reap(child int) (int, error) {
	var status syscall.WaitStatus
	var usage syscall.Rusage
	pid, err := syscall.Wait4(child, &status, syscall.WNOHANG, &usage)
	if pid > 0 {
		t.used += time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
		t.peak = max(t.peak, usage.Maxrss*1024)
	}
	if pid == t.pid {
		t.status = status
	}
	return pid, err
}

// Runs at each signal and tick of the timer: decides whether the task's start has to be reported,
// and whether the task has to end. A cancel mark may be half written at this moment: its writer
// repeats the signal.
func (r *runner) oversee() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	t := r.task
	if t == nil || t.over {
		return
	}
	if !t.told {
		r.tell(t)
		if left := t.timeout - time.Since(t.began); t.timeout > 0 {
			setTimer(max(left, brief), time.Second)
		} else {
			setTimer(0, 0)
		}
	}
	if t.reason != "" {
		if !time.Now().Before(t.killAt) {
			syscall.Kill(-t.pid, syscall.SIGKILL)
		}
		return
	}
	if wish, _, whole := strings.Cut(slurp(r.path(t.name, "cancel")), "\n"); whole && wish != "" {
		t.reason, t.grace = "cancelled", parseSeconds(wish)
	} else if t.timeout > 0 && time.Since(t.began) >= t.timeout {
		t.reason = "timeout"
	}
	if t.reason != "" {
		t.killAt = time.Now().Add(t.grace)
		syscall.Kill(-t.pid, syscall.SIGTERM)
		setTimer(20*time.Millisecond, 20*time.Millisecond)
	}
}

func (r *runner) tell(t *task) {
	if !t.told {
		t.told = true
		r.say(fmt.Sprintf("started %d", t.pid))
	}
}

func (r *runner) say(line string) { syscall.Write(r.answers, []byte(line+"\n")) }

func (r *runner) path(name, kind string) string { return r.control + "/" + name + "." + kind }

// Creates the record of a name that has none.
func (r *runner) claim(path string) error {
	if r.log >= 0 && r.logged < recordsPerFile {
		// By the open file: its names may be gone, or belong to another file.
		err := link(fmt.Sprintf("/proc/self/fd/%d", r.log), path)
		if err == nil {
			r.logged++
		}
		if err == nil || err == syscall.EEXIST {
			return err
		}
	}
	fresh, err := syscall.Open(path,
		syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL|syscall.O_APPEND|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	if r.log >= 0 {
		syscall.Close(r.log)
	}
	r.log, r.logged, r.logLength = fresh, 1, 0
	return nil
}

// Adds whole lines to the record, or nothing.
func (r *runner) record(lines string) error {
	written, err := syscall.Write(r.log, []byte(lines))
	if err == nil && written < len(lines) {
		err = syscall.ENOSPC
	}
	if err != nil {
		r.shorten(r.logLength)
		return err
	}
	r.logLength += int64(written)
	return nil
}

func (r *runner) shorten(length int64) {
	syscall.Ftruncate(r.log, length)
	r.logLength = length
}

func (r *runner) countMemoryKills() {
	_, count, _ := strings.Cut(slurp(r.vmstat), "oom_kill ")
	count, _, _ = strings.Cut(count, "\n")
	r.memoryKills, _ = strconv.Atoi(count)
	r.memoryCounted = time.Now()
}

func (r *runner) children() (pids []int) {
	parent := strconv.Itoa(r.pid)
	for _, name := range namesIn("/proc") {
		if pid, err := strconv.Atoi(name); err == nil && statOf(pid, 1) == parent {
			pids = append(pids, pid)
		}
	}
	return pids
}

// The cgroup of a runner's tasks: they enter the same one in turn, because making one costs more
// than starting a task.
type confinement struct {
	script string
	asked  bool
	// Where cgroups can be made, empty: nowhere; in version 1 also the cgroup of this process.
	room, home string
	// The present cgroup, its limit, and its counter of kills so far.
	folder        string
	made          int
	limit, kills  int64
	descriptor    int
	events, usage int
}

// A smaller cgroup ends the process before it has become the task's program, so that the task never
// starts.
const leastConfined = 1 << 20

// How a task's memory limit is enforced; empty: the requested way is not available.
func (r *runner) confine(asked request) string {
	c := &r.confinement
	if asked.memoryLimit == "" || asked.memoryLimit == "cgroup" {
		c.look(r.pid, r.birth)
		if c.room != "" && c.prepare(r.pid, r.birth, max(asked.memory, leastConfined)) == nil {
			return "cgroup"
		}
		if asked.memoryLimit == "cgroup" {
			return ""
		}
	}
	if asked.memoryLimit != "none" && canLimitData() {
		return "rlimit"
	}
	return "none"
}

// Finds once where cgroups can be made, and removes those of killed runners.
func (c *confinement) look(pid int, birth string) {
	if c.asked {
		return
	}
	c.asked, c.descriptor = true, -1
	var pipe [2]int
	if syscall.Pipe2(pipe[:], syscall.O_CLOEXEC) != nil {
		return
	}
	shell, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", c.script, "sh", strconv.Itoa(pid)}, &syscall.ProcAttr{
		Env: []string{"PATH=/usr/bin:/bin"}, Files: []uintptr{0, uintptr(pipe[1]), uintptr(pipe[1])},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	syscall.Close(pipe[1])
	defer syscall.Close(pipe[0])
	if err != nil {
		return
	}
	text, _ := io.ReadAll(descriptor(pipe[0]))
	for {
		if _, err := syscall.Wait4(shell, nil, 0, nil); err != syscall.EINTR {
			break
		}
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 2 || !strings.HasPrefix(lines[0], "/") || (lines[1] == "" && !clonesIntoCgroups()) {
		return
	}
	c.room = lines[0]
	if strings.HasPrefix(lines[1], "/") {
		c.home = strings.TrimSuffix(lines[1], "/")
		if syscall.Access(c.home+"/tasks", 2) != nil {
			// A process that may not return from a task's cgroup into its own one needs one of its own
			// beside it.
			c.home = fmt.Sprintf("%s/orrery.runner-%d-%s-home", c.room, pid, birth)
			if syscall.Mkdir(c.home, 0o755) != nil || write(c.home+"/tasks", "0") != nil {
				c.room = ""
			}
		}
	}
	for _, name := range namesIn(c.room) {
		parts := strings.Split(strings.TrimPrefix(name, "orrery.runner-"), "-")
		number, err := strconv.Atoi(parts[0])
		if strings.HasPrefix(name, "orrery.runner-") && err == nil && len(parts) > 1 && birthOf(number) != parts[1] {
			syscall.Rmdir(c.room + "/" + name)
		}
	}
}

// Makes the cgroup ready for a task with this limit.
func (c *confinement) prepare(pid int, birth string, limit int64) error {
	if c.folder != "" && c.limit != limit && c.bound(limit) != nil {
		c.remove()
	}
	if c.folder != "" {
		return nil
	}
	c.made++
	folder := fmt.Sprintf("%s/orrery.runner-%d-%s-%d", c.room, pid, birth, c.made)
	if err := syscall.Mkdir(folder, 0o755); err != nil {
		return err
	}
	c.folder, c.kills, c.events, c.usage, c.descriptor = folder, 0, -1, -1, -1
	err := c.bound(limit)
	open := func(file *int, name string, mode int) {
		if err == nil {
			*file, err = syscall.Open(folder+"/"+name, mode|syscall.O_CLOEXEC, 0)
		}
	}
	open(&c.events, c.named("memory.events", "memory.oom_control"), syscall.O_RDONLY)
	open(&c.usage, c.named("memory.current", "memory.usage_in_bytes"), syscall.O_RDONLY)
	if c.home == "" {
		open(&c.descriptor, "", syscall.O_RDONLY|syscall.O_DIRECTORY)
	} else {
		open(&c.descriptor, "tasks", syscall.O_WRONLY)
	}
	if err != nil {
		c.remove()
	}
	return err
}

// The file of version 2, or of version 1.
func (c *confinement) named(unified, legacy string) string {
	if c.home == "" {
		return unified
	}
	return legacy
}

func (c *confinement) bound(limit int64) error {
	c.limit = limit
	value := strconv.FormatInt(limit, 10)
	if c.home == "" {
		_ = write(c.folder+"/memory.swap.max", "0")
		return write(c.folder+"/memory.max", value)
	}
	// Memory and swap together can be no less than memory alone: the growing limit is set first.
	_ = write(c.folder+"/memory.memsw.limit_in_bytes", value)
	if err := write(c.folder+"/memory.limit_in_bytes", value); err != nil {
		return err
	}
	_ = write(c.folder+"/memory.memsw.limit_in_bytes", value)
	return nil
}

// Lets the next start begin in the cgroup. In version 1 this thread enters and returns: alone,
// which costs little.
func (c *confinement) enter(attributes *syscall.SysProcAttr) (leave func(), err error) {
	if c.home == "" {
		attributes.UseCgroupFD, attributes.CgroupFD = true, c.descriptor
		return func() {}, nil
	}
	if _, err := syscall.Pwrite(c.descriptor, []byte("0"), 0); err != nil {
		return nil, err
	}
	return func() { must(write(c.home+"/tasks", "0")) }, nil
}

// How often the kernel has killed in the cgroup for the ended task, and if it has, the peak of
// memory. A cgroup that holds remains of a task (files in memory count) is not used again.
func (c *confinement) settle() (kills, peak int64) {
	_, count, _ := strings.Cut(readAt(c.events), "oom_kill ")
	count, _, _ = strings.Cut(count, "\n")
	all, _ := strconv.ParseInt(count, 10, 64)
	kills, c.kills = all-c.kills, all
	if kills > 0 {
		text := slurp(c.folder + "/" + c.named("memory.peak", "memory.max_usage_in_bytes"))
		peak, _ = strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	}
	if used, _ := strconv.ParseInt(strings.TrimSpace(readAt(c.usage)), 10, 64); used > c.limit/2 {
		c.remove()
	}
	return kills, peak
}

func (c *confinement) remove() {
	for _, file := range []int{c.events, c.usage, c.descriptor} {
		if file >= 0 {
			syscall.Close(file)
		}
	}
	// A process that just ended may hold it for a moment.
	for tries := 0; c.folder != "" && syscall.Rmdir(c.folder) == syscall.EBUSY && tries < 20; tries++ {
		time.Sleep(time.Millisecond)
	}
	c.folder, c.limit = "", 0
}

func (c *confinement) discard() {
	if c.folder != "" {
		c.remove()
	}
	if strings.HasSuffix(c.home, "-home") {
		syscall.Rmdir(c.home)
	}
}

// Whether a child can begin in a cgroup of version 2 (Linux 5.7).
func clonesIntoCgroups() bool {
	var major, minor int
	fmt.Sscanf(slurp("/proc/sys/kernel/osrelease"), "%d.%d", &major, &minor)
	return major > 5 || (major == 5 && minor >= 7)
}

type resourceLimit struct{ soft, hard uint64 }

// Address space that programs reserve and never touch (Java, Go, Node) does not count for
// RLIMIT_DATA; stacks and arenas of threads do. Twice the requested size plus 256 MiB ends a
// runaway program and leaves the others alone. remote/tasks.ts has the same.
func dataLimit(memory int64) uint64 { return 2*uint64(memory) + 256<<20 }

func prlimit(pid int, set, old *resourceLimit) error {
	_, _, failed := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(pid), syscall.RLIMIT_DATA,
		uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), 0, 0)
	if failed != 0 {
		return failed
	}
	return nil
}

func canLimitData() bool {
	var own resourceLimit
	return prlimit(0, nil, &own) == nil
}

// Lets the next start begin with the limit. Only the child can have a hard limit: this process
// could never raise it again.
func limitData(memory int64) (finish func(pid int)) {
	var own resourceLimit
	_ = prlimit(0, nil, &own)
	limit := min(dataLimit(memory), own.hard)
	_ = prlimit(0, &resourceLimit{limit, own.hard}, nil)
	return func(pid int) {
		_ = prlimit(0, &own, nil)
		if pid > 0 {
			_ = prlimit(pid, &resourceLimit{limit, limit}, nil)
		}
	}
}

func (o *output) open() error {
	if o.file >= 0 {
		return nil
	}
	file, err := syscall.Open(o.path, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_APPEND|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	o.file = file
	return syscall.Dup3(file, o.number, 0)
}

// Gives a task what it wrote. A full disk delays that; what can never be given is lost, as the next
// task must not get it.
func (o *output) deliver(record, path string) error {
	var stat syscall.Stat_t
	if syscall.Fstat(o.file, &stat) != nil || stat.Size == 0 {
		return nil
	}
	err := syscall.Rename(o.path, path)
	for (err == syscall.ENOSPC || err == syscall.EDQUOT) && exists(record) {
		time.Sleep(time.Second)
		err = syscall.Rename(o.path, path)
	}
	if err != nil {
		syscall.Unlink(o.path)
	}
	syscall.Close(o.file)
	o.file = -1
	return err
}

// Makes a work directory, with its parents. A directory from staging has mode 0700 already; a
// folder that others may enter is not ours, and its mode is never changed.
func makeDirectory(path string) error {
	err := syscall.Mkdir(path, 0o700)
	if err == syscall.ENOENT {
		if err := os.MkdirAll(path[:strings.LastIndexByte(path, '/')], 0o700); err != nil {
			return err
		}
		err = syscall.Mkdir(path, 0o700)
	}
	var stat syscall.Stat_t
	if err == syscall.EEXIST && syscall.Lstat(path, &stat) == nil && stat.Mode&(syscall.S_IFMT|0o077) == syscall.S_IFDIR {
		return nil
	}
	return err
}

func link(from, to string) error {
	source, err := syscall.BytePtrFromString(from)
	must(err)
	target, err := syscall.BytePtrFromString(to)
	must(err)
	// Both paths are absolute, so the folder descriptors are ignored.
	_, _, failed := syscall.Syscall6(syscall.SYS_LINKAT, 0, uintptr(unsafe.Pointer(source)),
		0, uintptr(unsafe.Pointer(target)), atSymlinkFollow, 0)
	if failed != 0 {
		return failed
	}
	return nil
}

// The beginning of a small file that is kept open.
func readAt(file int) string {
	var bytes [512]byte
	count, _ := syscall.Pread(file, bytes[:], 0)
	return string(bytes[:max(count, 0)])
}

func write(path, text string) error {
	file, err := syscall.Open(path, syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(file)
	_, err = syscall.Write(file, []byte(text))
	return err
}

func exists(path string) bool { return syscall.Access(path, 0) == nil }

// The begin of a file, empty where there is none: what is read here is short, but a path may lead to a
// device without an end.
func slurp(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	text, _ := io.ReadAll(io.LimitReader(file, 64<<10))
	return string(text)
}

func namesIn(folder string) []string {
	directory, err := os.Open(folder)
	must(err)
	defer directory.Close()
	names, _ := directory.Readdirnames(-1)
	return names
}

// A field of /proc/PID/stat, counted from the state, which is 0; empty where there is no such
// process.
func statOf(pid, field int) string {
	text := slurp(fmt.Sprintf("/proc/%d/stat", pid))
	// The command in parentheses may contain anything, blanks and parentheses too.
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if field >= len(fields) {
		return ""
	}
	return fields[field]
}

func birthOf(pid int) string { return statOf(pid, 19) }

// The present hundredth of a second since boot: the start time in /proc of a process that begins
// now.
func ticksSinceBoot() int64 {
	var now syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&now)), 0)
	return now.Sec*100 + now.Nsec/10_000_000
}

// SIGALRM after `first`, then each `every`: a timer of Go's would wake a thread for each task.
func setTimer(first, every time.Duration) {
	value := [2]syscall.Timeval{syscall.NsecToTimeval(every.Nanoseconds()), syscall.NsecToTimeval(first.Nanoseconds())}
	syscall.RawSyscall(syscall.SYS_SETITIMER, itimerReal, uintptr(unsafe.Pointer(&value)), 0)
}

func epoch(at time.Time) string { return fmt.Sprintf("%d.%06d", at.Unix(), at.Nanosecond()/1000) }

func parseSeconds(text string) time.Duration {
	seconds, _ := strconv.ParseFloat(text, 64)
	return time.Duration(seconds * float64(time.Second))
}

// A descriptor that tasks do not inherit.
func duplicate(file int) int {
	number, _, failed := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(file), syscall.F_DUPFD_CLOEXEC, 3)
	if failed != 0 {
		panic(failed)
	}
	return int(number)
}

// Reads without Go's poller, which would make a thread wait.
type descriptor int

func (d descriptor) Read(bytes []byte) (int, error) {
	for {
		count, err := syscall.Read(int(d), bytes)
		if err == syscall.EINTR {
			continue
		}
		if count == 0 && err == nil {
			err = io.EOF
		}
		return max(count, 0), err
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

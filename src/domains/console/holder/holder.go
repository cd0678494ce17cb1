// A terminal that outlives whoever looks at it. `holder start DIRECTORY ROWS COLUMNS` opens a
// pseudo terminal with the account's login shell in a session of its own and records all of it in
// DIRECTORY/recording; `holder attach DIRECTORY OFFSET` writes the recording from that byte on to
// standard output as it grows, ends with it, and takes frames from standard input; `holder end
// DIRECTORY` ends the shell. The recording is written before anybody reads it. It needs nothing but
// the kernel.
//
// Both directions have the same frames: a byte, eight bytes of microseconds since the start (0 from
// a client), four bytes of length, the content. To the client: `o` output, `i` input as far as it
// is echoed, `r` the size as two numbers of four bytes, `x` the end as a text. From the client:
// `i`, `r`, `c`, which ends the shell, and `k` with an offset of eight bytes: the client has stored the
// recording up to there, so it is removed from the file. Offsets stay as they are.
package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	mostRecorded = 64 << 20
	mostFrame    = 1 << 20
	headBytes    = 13
	// What waits to be repeated by the output.
	mostPending = 4096
	// Input goes to the terminal in pieces of this size, and as many pieces wait for it.
	mostPiece   = 4096
	mostWaiting = 256
	// A program that takes no input for this long loses what does not fit.
	mostStuck = 2 * time.Second
)

func fail(format string, words ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", words...)
	os.Exit(1)
}

func ioctl(file uintptr, request uintptr, argument unsafe.Pointer) error {
	if _, _, code := syscall.Syscall(syscall.SYS_IOCTL, file, request, uintptr(argument)); code != 0 {
		return code
	}
	return nil
}

// Opens a pseudo terminal: the side that is held, and the path of the shell's.
func openTerminal() (*os.File, string, error) {
	descriptor, err := syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", err
	}
	held := os.NewFile(uintptr(descriptor), "/dev/ptmx")
	var locked int32
	if err := ioctl(held.Fd(), syscall.TIOCSPTLCK, unsafe.Pointer(&locked)); err != nil {
		return nil, "", err
	}
	var number uint32
	if err := ioctl(held.Fd(), syscall.TIOCGPTN, unsafe.Pointer(&number)); err != nil {
		return nil, "", err
	}
	return held, "/dev/pts/" + strconv.Itoa(int(number)), nil
}

type size struct{ rows, columns, x, y uint16 }

func resize(terminal *os.File, rows, columns uint32) bool {
	if rows < 1 || columns < 1 || rows > 1000 || columns > 1000 {
		return false
	}
	wanted := size{rows: uint16(rows), columns: uint16(columns)}
	return ioctl(terminal.Fd(), syscall.TIOCSWINSZ, unsafe.Pointer(&wanted)) == nil
}

func isProgram(path string) bool {
	about, err := os.Stat(path)
	return err == nil && about.Mode().IsRegular() && about.Mode()&0o111 != 0
}

// The login shell of the account.
func shellOf(name string) string {
	if text, err := os.ReadFile("/etc/passwd"); err == nil {
		for _, line := range strings.Split(string(text), "\n") {
			fields := strings.Split(line, ":")
			if len(fields) == 7 && fields[0] == name && isProgram(fields[6]) {
				return fields[6]
			}
		}
	}
	for _, shell := range []string{os.Getenv("SHELL"), "/bin/bash"} {
		if isProgram(shell) {
			return shell
		}
	}
	return "/bin/sh"
}

type holder struct {
	terminal *os.File
	file     *os.File
	began    time.Time
	mutex    sync.Mutex
	grown    *sync.Cond
	written  int64
	removed  int64
	over     bool
	full     bool
	pending  []byte
	process  *os.Process
	// Input that the terminal has not taken yet.
	waiting chan []byte
	// Whether no input could be added for mostStuck, and none was taken since.
	stuck atomic.Bool
	// Why the recording could not be written.
	fault error
}

func (h *holder) frame(kind byte, content []byte) []byte {
	frame := make([]byte, headBytes, headBytes+len(content))
	frame[0] = kind
	binary.BigEndian.PutUint64(frame[1:], uint64(time.Since(h.began).Microseconds()))
	binary.BigEndian.PutUint32(frame[9:], uint32(len(content)))
	return append(frame, content...)
}

// Appends one frame; with the mutex held.
func (h *holder) record(kind byte, content []byte) {
	if h.over || h.fault != nil {
		return
	}
	frame := h.frame(kind, content)
	if _, err := h.file.Write(frame); err != nil {
		// A full disk: what cannot be recorded is not done.
		h.fault = err
		h.file.Truncate(h.written)
		h.process.Signal(syscall.SIGHUP)
		time.AfterFunc(2*time.Second, func() { syscall.Kill(-h.process.Pid, syscall.SIGKILL) })
		return
	}
	h.written += int64(len(frame))
	h.grown.Broadcast()
}

func (h *holder) output(content []byte) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	// What cannot be recorded is not shown.
	if h.full {
		return
	}
	same := 0
	for same < len(content) && same < len(h.pending) && content[same] == h.pending[same] {
		same++
	}
	if same > 0 {
		h.record('i', h.pending[:same])
		h.pending = h.pending[same:]
	} else {
		h.pending = nil
	}
	h.record('o', content)
	if h.written >= mostRecorded && !h.full {
		h.full = true
		h.process.Signal(syscall.SIGHUP)
		time.AfterFunc(2*time.Second, func() { h.process.Kill() })
	}
}

// Input is recorded where the terminal echoes it, or where a program that reads every key repeats
// it. A password is neither.
func (h *holder) input(content []byte) {
	h.mutex.Lock()
	var mode syscall.Termios
	if ioctl(h.terminal.Fd(), syscall.TCGETS, unsafe.Pointer(&mode)) == nil {
		if mode.Lflag&syscall.ECHO != 0 {
			h.record('i', content)
		} else if mode.Lflag&syscall.ICANON == 0 && len(h.pending)+len(content) <= mostPending {
			h.pending = append(h.pending, content...)
		}
	}
	h.mutex.Unlock()
	h.terminal.Write(content)
	h.stuck.Store(false)
}

// Gives the terminal its input. The write blocks while no program reads, so nothing else waits for it.
func (h *holder) giveInput() {
	for content := range h.waiting {
		h.input(content)
	}
}

// Adds to the input that waits. Terminals drop what nobody reads, and so does this.
func (h *holder) addInput(content []byte) {
	for len(content) > 0 {
		piece := content[:min(len(content), mostPiece)]
		content = content[len(piece):]
		select {
		case h.waiting <- piece:
			continue
		default:
		}
		if h.stuck.Load() {
			return
		}
		late := time.NewTimer(mostStuck)
		select {
		case h.waiting <- piece:
		case <-late.C:
			h.stuck.Store(true)
		}
		late.Stop()
	}
}

func (h *holder) resized(rows, columns uint32) {
	if !resize(h.terminal, rows, columns) {
		return
	}
	content := make([]byte, 8)
	binary.BigEndian.PutUint32(content, rows)
	binary.BigEndian.PutUint32(content[4:], columns)
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.record('r', content)
}

// Removes the recording up to an offset: a hole of the file where its system can make one, else zeros.
func (h *holder) remove(until int64) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	from := h.removed
	if until <= from || until > h.written {
		return
	}
	h.removed = until
	const keepSize, punchHole = 1, 2
	if syscall.Fallocate(int(h.file.Fd()), keepSize|punchHole, from, until-from) == nil {
		return
	}
	// What appends to a file writes nowhere else.
	file, err := os.OpenFile("recording", os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer file.Close()
	zeros := make([]byte, 64<<10)
	for ; from < until; from += int64(len(zeros)) {
		if _, err := file.WriteAt(zeros[:min(int64(len(zeros)), until-from)], from); err != nil {
			return
		}
	}
}

// Takes frames of a client until it goes.
func (h *holder) take(client io.Reader) {
	head := make([]byte, headBytes)
	for {
		if _, err := io.ReadFull(client, head); err != nil {
			return
		}
		length := binary.BigEndian.Uint32(head[9:])
		if length > mostFrame {
			return
		}
		content := make([]byte, length)
		if _, err := io.ReadFull(client, content); err != nil {
			return
		}
		switch {
		case head[0] == 'i':
			h.addInput(content)
		case head[0] == 'r' && length == 8:
			h.resized(binary.BigEndian.Uint32(content), binary.BigEndian.Uint32(content[4:]))
		case head[0] == 'k' && length == 8:
			h.remove(int64(binary.BigEndian.Uint64(content)))
		case head[0] == 'c':
			h.process.Signal(syscall.SIGHUP)
			time.AfterFunc(2*time.Second, func() { syscall.Kill(-h.process.Pid, syscall.SIGKILL) })
		}
	}
}

// Gives a client the recording from an offset on, until the end of it.
func (h *holder) give(client net.Conn) {
	defer client.Close()
	first := make([]byte, 8)
	if _, err := io.ReadFull(client, first); err != nil {
		return
	}
	at := int64(binary.BigEndian.Uint64(first))
	h.mutex.Lock()
	removed := h.removed
	h.mutex.Unlock()
	if at < removed {
		client.Write(h.frame('x', []byte(fmt.Sprintf(
			"the recording lacks the bytes from %d to %d: they were stored once, and the record of that is lost", at, removed))))
		return
	}
	go h.take(client)
	file, err := os.Open("recording")
	if err != nil {
		return
	}
	defer file.Close()
	chunk := make([]byte, 64<<10)
	for {
		h.mutex.Lock()
		for at >= h.written && !h.over {
			h.grown.Wait()
		}
		until, over, fault := h.written, h.over, h.fault
		h.mutex.Unlock()
		if at >= until && over {
			if fault != nil {
				client.Write(h.frame('x', []byte("the recording cannot be written: "+fault.Error())))
			}
			return
		}
		count, err := file.ReadAt(chunk[:min(int64(len(chunk)), until-at)], at)
		if count == 0 && err != nil {
			return
		}
		if _, err := client.Write(chunk[:count]); err != nil {
			return
		}
		at += int64(count)
	}
}

func (h *holder) ended(text string) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.record('x', []byte(text))
	h.over = true
	h.grown.Broadcast()
}

func loginEnvironment(name, home, shell string) []string {
	environment := []string{"TERM=xterm-256color", "HOME=" + home, "USER=" + name, "LOGNAME=" + name, "SHELL=" + shell,
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
	if cluster := os.Getenv("SLURM_CONF"); cluster != "" {
		environment = append(environment, "SLURM_CONF="+cluster)
	}
	return environment
}

// What a terminal gives, in pieces of up to 64 KiB: a read gives 4 KiB at most.
func piecesOf(terminal *os.File) <-chan []byte {
	small, pieces := make(chan []byte, 16), make(chan []byte)
	go func() {
		defer close(small)
		chunk := make([]byte, 32<<10)
		for {
			count, err := terminal.Read(chunk)
			if count > 0 {
				small <- bytes.Clone(chunk[:count])
			}
			if err != nil {
				return
			}
		}
	}()
	go func() {
		defer close(pieces)
		for piece := range small {
			for more := true; more && len(piece) < 60<<10; {
				select {
				case next, open := <-small:
					piece, more = append(piece, next...), open
				default:
					more = false
				}
			}
			pieces <- piece
		}
	}()
	return pieces
}

// The holder itself: the process that stays.
func hold(rows, columns uint32, via []string) {
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGINT, syscall.SIGTTOU)
	// Another holder of the same session keeps this file locked as long as it lives.
	lock, err := os.OpenFile("lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		fail("%v", err)
	}
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return
	}
	// A session is begun once, whatever became of it.
	file, err := os.OpenFile("recording", os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return
	}
	// Whoever starts this finds no begun session where no shell ran.
	unbegun := func(format string, words ...any) {
		os.Remove("recording")
		fail(format, words...)
	}
	terminal, path, err := openTerminal()
	if err != nil {
		unbegun("no pseudo terminal can be opened: %v", err)
	}
	resize(terminal, rows, columns)
	side, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		unbegun("the pseudo terminal %s cannot be opened: %v", path, err)
	}
	name, home := "", "/"
	if account, err := user.Current(); err == nil {
		name, home = account.Username, account.HomeDir
	}
	shell := shellOf(name)
	command := exec.Command(shell)
	command.Args = []string{"-" + shell[strings.LastIndex(shell, "/")+1:]}
	if len(via) > 0 {
		command = exec.Command(via[0], append(via[1:], shell, "-l")...)
	}
	command.Dir = home
	if _, err := os.Stat(home); err != nil {
		command.Dir = "/"
	}
	// An image's own environment instead of a login's, whose profile would set another PATH.
	if os.Getenv("ORRERY_CONSOLE_ENVIRONMENT") == "own" {
		os.Unsetenv("ORRERY_CONSOLE_ENVIRONMENT")
		command.Args[0] = shell
		command.Env = append(os.Environ(), "TERM=xterm-256color", "HOME="+home, "SHELL="+shell)
	} else {
		command.Env = loginEnvironment(name, home, shell)
	}
	command.Stdin, command.Stdout, command.Stderr = side, side, side
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	// It has its own name once the shell runs: whoever starts this waits for that.
	os.Remove("unnamed")
	server, err := net.Listen("unix", "unnamed")
	if err != nil {
		unbegun("%v", err)
	}
	if err := command.Start(); err != nil {
		unbegun("%s cannot be started: %v", command.Path, err)
	}
	os.Rename("unnamed", "socket")
	side.Close()
	h := &holder{terminal: terminal, file: file, began: time.Now(), process: command.Process}
	h.waiting = make(chan []byte, mostWaiting)
	go h.giveInput()
	h.grown = sync.NewCond(&h.mutex)
	h.resized(rows, columns)
	var givers sync.WaitGroup
	go func() {
		for {
			client, err := server.Accept()
			if err != nil {
				return
			}
			givers.Add(1)
			go func() { defer givers.Done(); h.give(client) }()
		}
	}()
	read := make(chan struct{})
	go func() {
		defer close(read)
		for piece := range piecesOf(terminal) {
			h.output(piece)
		}
	}()
	command.Wait()
	select {
	case <-read:
	case <-time.After(2 * time.Second):
		// What the shell has left holds the terminal: it hangs up when the terminal is closed.
		terminal.Close()
	}
	end := "the shell ended with " + command.ProcessState.String()
	if h.full {
		end = "the recording has reached 64 MiB"
	}
	h.ended(end)
	os.Remove("socket")
	server.Close()
	givers.Wait()
}

// Starts the holder apart from whoever asks, and waits until it can be attached to.
func start(rows, columns string, via []string) {
	self, err := os.Executable()
	if err != nil {
		fail("%v", err)
	}
	errors, err := os.OpenFile("error", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		fail("%v", err)
	}
	process := exec.Command(self, append([]string{"hold", ".", rows, columns}, via...)...)
	process.Stderr = errors
	process.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := process.Start(); err != nil {
		fail("%v", err)
	}
	done := make(chan struct{})
	go func() { process.Wait(); close(done) }()
	for {
		if _, err := os.Stat("socket"); err == nil {
			return
		}
		select {
		case <-done:
			if _, err := os.Stat("recording"); err == nil {
				return
			}
			text, _ := os.ReadFile("error")
			fail("%s", strings.TrimSpace(string(text)))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func attach(offset string) {
	at, err := strconv.ParseInt(offset, 10, 64)
	if err != nil {
		fail("%v", err)
	}
	first := make([]byte, 8)
	binary.BigEndian.PutUint64(first, uint64(at))
	client, err := net.Dial("unix", "socket")
	if err != nil {
		// The holder is gone: what it recorded is all there is.
		file, err := os.Open("recording")
		if err != nil {
			fail("there is no recording: %v", err)
		}
		file.Seek(at, io.SeekStart)
		io.Copy(os.Stdout, file)
		return
	}
	client.Write(first)
	go func() {
		if _, err := io.Copy(client, os.Stdin); err != nil {
			// The holder takes no more. Its last bytes are still on their way.
			io.Copy(io.Discard, os.Stdin)
		}
		// Whoever attached has gone.
		client.Close()
		os.Exit(0)
	}()
	io.Copy(os.Stdout, client)
}

// Ends the shell of a holder that still runs, and waits for its end.
func end() {
	client, err := net.Dial("unix", "socket")
	if err != nil {
		return
	}
	client.SetDeadline(time.Now().Add(10 * time.Second))
	first := make([]byte, 8)
	binary.BigEndian.PutUint64(first, 1<<62)
	client.Write(append(first, append([]byte{'c'}, make([]byte, headBytes-1)...)...))
	io.Copy(io.Discard, client)
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == "end" {
		if os.Chdir(os.Args[2]) == nil {
			end()
		}
		return
	}
	if len(os.Args) < 4 {
		fail("holder start DIRECTORY ROWS COLUMNS [PROGRAM THAT RUNS A SHELL ELSEWHERE], or holder attach DIRECTORY OFFSET")
	}
	if os.Args[1] == "start" {
		os.MkdirAll(os.Args[2], 0o700)
	}
	if err := os.Chdir(os.Args[2]); err != nil {
		fail("%v", err)
	}
	switch os.Args[1] {
	case "start":
		start(os.Args[3], os.Args[4], os.Args[5:])
	case "hold":
		rows, _ := strconv.ParseUint(os.Args[3], 10, 32)
		columns, _ := strconv.ParseUint(os.Args[4], 10, 32)
		hold(uint32(rows), uint32(columns), os.Args[5:])
	case "attach":
		attach(os.Args[3])
	default:
		fail("%s is no command of the holder", os.Args[1])
	}
}

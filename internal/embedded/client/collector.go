package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
)

// envCollector carries the collectorSpec of a helper process.
const envCollector = "HETEROFLOW_LOG_COLLECTOR"

const (
	collectorReady = "ready\n"
	collectorStart = 10 * time.Second
	// drainWait is how long a collector that was told to end waits for more output.
	drainWait = 20 * time.Millisecond
)

// collectorSpec is what one log collector does: the two pipes of a task, and where and how large its files are.
type collectorSpec struct {
	Dir      string `json:"dir"`
	Task     string `json:"task"`
	MaxFiles int    `json:"max_files"`
	MaxBytes int64  `json:"max_bytes"`
}

func (s collectorSpec) lock() string { return filepath.Join(s.Dir, "."+s.Task+".collector") }

// Helper turns this process into a log collector when it was started as one, and then never returns. Every binary
// that runs a Client calls it first in main: a task's output is read by a process of its own, so that nothing is lost
// and no task is killed by a closed pipe while the engine is away.
func Helper() {
	text := os.Getenv(envCollector)
	if text == "" {
		return
	}
	var spec collectorSpec
	err := json.Unmarshal([]byte(text), &spec)
	if err == nil {
		err = collect(spec)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// collect copies both pipes into files until SIGTERM, then takes what is left in them.
func collect(spec collectorSpec) error {
	lock, err := os.OpenFile(spec.lock(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	// Held to the end: a file that nobody refers to is closed by the garbage collector, and the lock with it. This
	// collector would then count as gone: a second one would read the same pipes, and nobody would end this one.
	defer lock.Close() //nolint:errcheck // the process ends
	if err := tryLock(lock); err != nil {
		return fmt.Errorf("another collector of %s runs: %w", spec.Task, err)
	}
	if err := lock.Truncate(0); err != nil {
		return err
	}
	if _, err := lock.WriteString(strconv.Itoa(os.Getpid())); err != nil {
		return err
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	stop := make(chan struct{})
	errs := make(chan error, 2)
	dir := allocDir{filepath.Dir(filepath.Dir(spec.Dir))}
	for _, kind := range []string{"stdout", "stderr"} {
		// Opened for both directions: the end of the last writer is then no end of file, and the pipe outlives
		// restarts of the task.
		pipe, err := os.OpenFile(dir.fifo(spec.Task, kind), os.O_RDWR|pipeFlags, 0)
		if err != nil {
			return err
		}
		out, err := openRotated(spec.Dir, spec.Task+"."+kind, spec.MaxFiles, spec.MaxBytes)
		if err != nil {
			return err
		}
		go func() { errs <- errors.Join(drain(pipe, out, stop), out.Close()) }()
	}
	if _, err := os.Stdout.WriteString(collectorReady); err != nil {
		return err
	}
	<-term
	close(stop)
	return errors.Join(<-errs, <-errs)
}

// drain copies until stop is closed, and then what is left in the pipe.
func drain(pipe *os.File, out io.Writer, stop <-chan struct{}) error {
	go func() {
		<-stop
		if err := pipe.SetReadDeadline(time.Now()); err != nil { // wakes the read below
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	write := func(b []byte) {
		if _, err := out.Write(b); err != nil {
			// A full disk must not stop the task: its output is read on and dropped.
			fmt.Fprintln(os.Stderr, err)
		}
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := pipe.Read(buf)
		write(buf[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return err
		}
	}
	if err := pipe.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	raw, err := pipe.SyscallConn()
	if err != nil {
		return err
	}
	for last := false; ; {
		var n int
		var readErr error
		// Read without waiting: a deadline may pass before the first read on a busy machine.
		if err := raw.Read(func(fd uintptr) bool {
			n, readErr = readNow(fd, buf)
			return true
		}); err != nil {
			return err
		}
		switch {
		case n > 0:
			write(buf[:n])
		case readErr != nil && !errors.Is(readErr, syscall.EAGAIN) && !errors.Is(readErr, syscall.EINTR):
			return readErr
		case last:
			return nil
		default:
			// One look more, for a writer that forwards the output of something else.
			last = true
			time.Sleep(drainWait)
		}
	}
}

// collector is the engine's hold on the collector of one task.
type collector struct {
	spec collectorSpec
	log  hclog.Logger
	mu   sync.Mutex
	end  bool
}

// ensure starts the collector unless one runs already, also one of an earlier engine.
func (c *collector) ensure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end || c.pid() != 0 {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start log collector: %w", err)
	}
	text, err := json.Marshal(c.spec)
	if err != nil {
		return fmt.Errorf("start log collector: %w", err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envCollector+"="+string(text))
	cmd.SysProcAttr = ownSession()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start log collector: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start log collector: %w", err)
	}
	ready := make(chan bool, 1)
	go func() {
		buf := make([]byte, len(collectorReady))
		_, err := io.ReadFull(stdout, buf)
		ready <- err == nil && string(buf) == collectorReady
		if err := cmd.Wait(); err != nil {
			c.log.Warn("log collector ended", "task", c.spec.Task, "error", err)
		}
	}()
	timer := time.NewTimer(collectorStart)
	defer timer.Stop()
	select {
	case ok := <-ready:
		if !ok {
			return fmt.Errorf("start log collector: %s did not become one; its main must call client.Helper first", self)
		}
	case <-timer.C:
		return errors.Join(fmt.Errorf("start log collector: not ready after %s", collectorStart), cmd.Process.Kill())
	}
	return nil
}

// watch starts the collector again when something ended it, until ctx ends.
func (c *collector) watch(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := c.ensure(); err != nil {
				c.log.Error("log collector not started", "task", c.spec.Task, "error", err)
			}
		}
	}
}

// stop has the collector take what is left in the pipes, and waits for its end.
func (c *collector) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end = true
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		pid := c.pid()
		if pid == 0 {
			return
		}
		sig := syscall.SIGTERM
		if time.Now().After(deadline) {
			sig = syscall.SIGKILL
		}
		if err := signalProcess(pid, sig); err != nil {
			c.log.Warn("log collector not stopped", "task", c.spec.Task, "error", err)
			return
		}
		if sig == syscall.SIGKILL {
			return
		}
	}
}

// pid is the process that holds the collector's lock, 0 when none does.
func (c *collector) pid() int {
	f, err := os.OpenFile(c.spec.lock(), os.O_RDWR, 0)
	if err != nil {
		return 0
	}
	defer f.Close()
	if err := tryLock(f); err == nil {
		return 0
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	return pid
}

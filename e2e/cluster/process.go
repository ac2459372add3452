//go:build linux

package cluster

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a program the cluster started, with what it printed.
type Process struct {
	Name string
	cmd  *exec.Cmd
	done chan struct{}

	mu  sync.Mutex
	out strings.Builder
}

// Write keeps what the program prints.
func (p *Process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

// Output is everything printed so far, both streams.
func (p *Process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

func (c *Cluster) run(name string, env []string, path string, args ...string) *Process {
	c.t.Helper()
	p := &Process{Name: name, done: make(chan struct{})}
	p.cmd = exec.Command(path, args...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.Env = append(os.Environ(), env...)
	// Own group: an interrupt at the terminal ends the tests, which then end what they started, in order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = time.Second // children may hold the pipes
	if err := p.cmd.Start(); err != nil {
		c.t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		p.cmd.Wait() //nolint:errcheck // killed on purpose; the exit is seen in done
		close(p.done)
	}()
	*c.started = append(*c.started, p)
	return p
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Alive reports whether it still runs.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Kill ends it at once, as kill -9 does, and waits for the end.
func (p *Process) Kill() {
	p.cmd.Process.Kill() //nolint:errcheck // it may have ended by itself
	<-p.done
}

// Stop asks it to end and kills it after half a minute.
func (p *Process) Stop() {
	p.cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended by itself
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		p.Kill()
	}
}

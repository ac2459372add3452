//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Cores of the measured and of what measures.
const (
	quietCore    = 0
	measuredCore = 1
)

// pin moves this process, and what it will start, to one core, and gives them a priority.
func pin(core, nice int) error {
	set := unix.CPUSet{}
	set.Set(core)
	runtime.GOMAXPROCS(1)
	if nice != 0 { // a priority counts only among what was started together, which as a whole has one of its own
		os.WriteFile("/proc/self/autogroup", []byte(strconv.Itoa(nice)), 0) //nolint:errcheck // systems without groups need none
	}
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		return err
	}
	for _, task := range tasks {
		id, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(id, &set); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("pin to core %d: %w", core, err)
		}
		if err := unix.Setpriority(unix.PRIO_PROCESS, id, nice); nice != 0 && err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("set the priority to %d: %w", nice, err)
		}
	}
	return nil
}

// process is a program that was started.
type process struct {
	cmd  *exec.Cmd
	out  *bytes.Buffer
	done chan struct{}
}

// start starts a program on a core. It ends when this process does, also when that is killed.
func start(core int, env []string, name string, args ...string) (*process, error) {
	runtime.LockOSThread() // what is started takes the cores of the thread that starts it
	defer runtime.UnlockOSThread()
	var before, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return nil, err
	}
	set.Set(core)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return nil, err
	}
	defer unix.SchedSetaffinity(0, &before) //nolint:errcheck // it was its own
	p := &process{cmd: exec.Command(name, args...), out: &bytes.Buffer{}, done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.cmd.Wait() //nolint:errcheck // how it ended is told by what it wrote
		close(p.done)
	}()
	return p, nil
}

// stop ends the program, with force if it does not end by itself.
func (p *process) stop() {
	p.cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // one that has ended needs none
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
		for _, pid := range p.family() {
			syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // see above
		}
		<-p.done
	}
}

// family are the ids of the program and of what it started.
func (p *process) family() []int {
	list := []int{p.cmd.Process.Pid}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		raw, err := os.ReadFile(stat)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		if err == nil && len(fields) > 1 && fields[1] == strconv.Itoa(p.cmd.Process.Pid) {
			list = append(list, pid)
		}
	}
	return list
}

// cpu is the time that all threads of the program have run, as the scheduler counts it.
func (p *process) cpu() time.Duration {
	sum := time.Duration(0)
	for _, pid := range p.family() {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				continue // a thread that has just ended
			}
			text, _, _ := strings.Cut(string(raw), " ")
			n, _ := strconv.ParseInt(text, 10, 64)
			sum += time.Duration(n)
		}
	}
	return sum
}

// settled is cpu once the program has worked off what it was given.
func (p *process) settled() time.Duration {
	const step = 50 * time.Millisecond
	for range 100 {
		before := p.cpu()
		time.Sleep(step)
		if now := p.cpu(); now-before < step/20 {
			return now
		}
	}
	return p.cpu()
}

// resident is the memory that the program holds, bytes.
func (p *process) resident() int64 {
	sum := int64(0)
	for _, pid := range p.family() {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(raw)) {
			if text, ok := strings.CutPrefix(line, "VmRSS:"); ok {
				n, _ := strconv.ParseInt(strings.Fields(text)[0], 10, 64)
				sum += n << 10
			}
		}
	}
	return sum
}

// freeAddr is an address that nobody listens on.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

package mps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// server is the program that clients are served by; the control daemon starts it.
const server = "nvidia-cuda-mps-server"

// defaultPipe is where MPS keeps its pipe when it is not told.
const defaultPipe = "/tmp/nvidia-mps"

// process is a process of MPS.
type process struct {
	pid     int
	control bool              // a control daemon; else a server
	env     map[string]string // nil when it cannot be read
}

// pipe is its pipe directory; empty when that is not known.
func (p process) pipe() string {
	if p.env == nil {
		return ""
	}
	if dir := p.env[envPipe]; dir != "" {
		return filepath.Clean(dir)
	}
	return defaultPipe
}

// mayServe tells whether a card may be one of the process's: what it says by numbers, or does not say, may be any.
func (p process) mayServe(card string) bool {
	visible, set := p.env[envVisible]
	if !set {
		return true
	}
	for name := range strings.SplitSeq(visible, ",") {
		name = strings.TrimSpace(name)
		_, err := strconv.ParseUint(name, 10, 16)
		if err == nil || strings.HasPrefix(name, "GPU-") && strings.HasPrefix(card, name) {
			return true
		}
	}
	return false
}

// owns tells whether a process is ours.
func (b *Backend) owns(p process) bool {
	rest, ok := strings.CutPrefix(p.pipe(), b.base()+"/")
	return ok && rest != ""
}

// processes are those of MPS on the machine.
func (b *Backend) processes() ([]process, error) {
	entries, err := os.ReadDir(b.host.Path("/proc"))
	if err != nil {
		return nil, fmt.Errorf("look for processes of MPS: %w", err)
	}
	var out []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid <= 0 {
			continue
		}
		if p, ok := b.process(pid); ok {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(x, y process) int { return x.pid - y.pid })
	return out, nil
}

// process reads one process; ok is false for those that are not of MPS, or gone.
func (b *Backend) process(pid int) (p process, ok bool) {
	dir := b.host.Path("/proc", strconv.Itoa(pid))
	// The kernel keeps 15 characters of the name: enough to pass by nearly every process with one short read.
	if comm, err := os.ReadFile(filepath.Join(dir, "comm")); err != nil || !strings.HasPrefix(string(comm), program[:15]) {
		return process{}, false
	}
	line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return process{}, false
	}
	args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	p = process{pid: pid}
	switch filepath.Base(args[0]) {
	case program:
		p.control = true
		if !slices.Contains(args[1:], "-d") && !slices.Contains(args[1:], "-f") {
			return process{}, false // somebody tells a daemon something
		}
	case server:
	default:
		return process{}, false
	}
	text, err := os.ReadFile(filepath.Join(dir, "environ"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return process{}, false
	}
	if err == nil {
		p.env = parseEnviron(string(text))
	}
	return p, true
}

// alive tells whether a process is there still, and is the same.
func (b *Backend) alive(p process) bool {
	now, ok := b.process(p.pid)
	return ok && now.control == p.control && now.pipe() == p.pipe()
}

// parseEnviron reads /proc/<pid>/environ. Of a name that is there twice the first counts, as it does for getenv.
func parseEnviron(text string) map[string]string {
	env := map[string]string{}
	for entry := range strings.SplitSeq(text, "\x00") {
		name, value, ok := strings.Cut(entry, "=")
		if _, twice := env[name]; ok && !twice {
			env[name] = value
		}
	}
	return env
}

// Package nvidiatest is a fake machine with NVIDIA cards that keeps state, for tests of the backends below share/nvidia and
// of what uses them: nvidia-smi with GPU instances, and the MPS control daemon with its processes. What the tools print has the
// form of recorded output; see SOURCES.md.
package nvidiatest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

// Machine is a host with cards. It is safe for concurrent use.
type Machine struct {
	*sharetest.Tools
	// Root stands for its file system: /proc has its processes.
	Root string

	t       TB
	mu      sync.Mutex
	cards   []*Card
	daemons []daemon
	pid     int
	drop    map[string]bool // tools that do nothing and say so
}

// Card is one card of a machine. Change it with Machine.Set.
type Card struct {
	Index     int
	UUID      string
	Model     string
	MemoryMiB uint64
	MIG       string // Enabled, Disabled or [N/A]
	Pending   string // MIG mode after the next reset; empty: as MIG
	Profiles  []Profile
	Instances []Instance
	Clients   []Client // processes

	// Busy makes the tool refuse to make and to destroy instances, as when another client holds the card.
	Busy bool
	// NoCompute makes the next so many creations stop after the GPU instance, without a compute instance.
	NoCompute int
}

// Profile is a kind of GPU instance.
type Profile struct {
	ID     int
	Name   string // as in "1g.10gb"
	GiB    string // as the tool prints it
	SMs    int
	Total  int
	Starts []int
	Size   int
}

// Instance is a GPU instance.
type Instance struct {
	ID      int
	Profile int
	Start   int
	Compute bool // it has its compute instance
	Times   int  // how often one like it was made before at its place; its device has a UUID of its own
}

// Client is a process on a card.
type Client struct {
	PID      int
	Name     string
	GI       *int // nil: on no instance
	UsedMiB  uint64
	Graphics bool
}

// TB is what a machine needs of a test.
type TB interface{ Error(args ...any) }

// New is a machine with these cards and all tools.
func New(t testing.TB, cards ...Card) *Machine {
	t.Helper()
	return At(t, t.TempDir(), cards...)
}

// At is New with a folder that stands for the machine's file system.
func At(t TB, root string, cards ...Card) *Machine {
	m := &Machine{Root: root, t: t, pid: 4000, drop: map[string]bool{}}
	for i, c := range cards {
		c.Index = i
		m.cards = append(m.cards, &c)
	}
	m.Tools = sharetest.NewTools(map[string]func([]string) share.Output{
		"nvidia-smi": m.smi, "nvidia-cuda-mps-control": m.control, "env": m.env, "kill": m.kill,
	})
	m.write("/proc/sys/kernel/random/boot_id", "6f1a3c0e-0000-4000-8000-000000000001\n")
	return m
}

// Set changes a card.
func (m *Machine) Set(index int, change func(c *Card)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m.cards[index])
}

// Reboot gives the machine another boot: GPU instances, processes and /run do not outlive it.
func (m *Machine) Reboot() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.cards {
		c.Instances, c.Clients = nil, nil
	}
	for _, d := range m.daemons {
		m.remove(d.proc())
	}
	m.daemons = nil
	m.remove("/run")
	m.pid++
	m.write("/proc/sys/kernel/random/boot_id", fmt.Sprintf("6f1a3c0e-0000-4000-8000-%012d\n", m.pid))
}

// Add makes a GPU instance with its compute instance as an administrator does.
func (m *Machine) Add(index, profile, start int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.cards[index]
	c.Instances = append(c.Instances, Instance{ID: c.take(), Profile: profile, Start: start, Compute: true})
}

// Instances lists the GPU instances, such as "GPU-1 1g.10gb@6 id=1".
func (m *Machine) Instances() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for _, c := range m.cards {
		for _, in := range c.Instances {
			text := fmt.Sprintf("%s %s@%d", c.UUID, c.profile(in.Profile).Name, in.Start)
			if !in.Compute {
				text += " without compute instance"
			}
			out = append(out, text)
		}
	}
	slices.Sort(out)
	return out
}

// take is the smallest free id from 1, as a driver gives them.
func (c *Card) take() int {
	for id := 1; ; id++ {
		if !slices.ContainsFunc(c.Instances, func(in Instance) bool { return in.ID == id }) {
			return id
		}
	}
}

func (c *Card) profile(id int) Profile {
	at := slices.IndexFunc(c.Profiles, func(p Profile) bool { return p.ID == id })
	if at < 0 {
		return Profile{ID: -1}
	}
	return c.Profiles[at]
}

// free tells whether a place is free.
func (c *Card) free(start, size int) bool {
	return !slices.ContainsFunc(c.Instances, func(in Instance) bool {
		return start < in.Start+c.profile(in.Profile).Size && in.Start < start+size
	})
}

// places are the free places of a profile.
func (c *Card) places(p Profile) []int {
	var out []int
	for _, s := range p.Starts {
		if c.free(s, p.Size) {
			out = append(out, s)
		}
	}
	return out
}

func (m *Machine) write(path, text string) {
	path = filepath.Join(m.Root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Error(err)
		return
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.t.Error(err)
	}
}

func (m *Machine) remove(path string) {
	if err := os.RemoveAll(filepath.Join(m.Root, path)); err != nil {
		m.t.Error(err)
	}
}

func said(text string) share.Output { return share.Output{Stdout: text} }

func failed(status int, text string) share.Output {
	return share.Output{Stdout: text, ExitCode: status}
}

// flag is the value after a flag.
func flag(args []string, name string) (string, bool) {
	at := slices.Index(args, name)
	if at < 0 || at+1 >= len(args) {
		return "", false
	}
	return args[at+1], true
}

func number(text string) int {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return -1
	}
	return n
}

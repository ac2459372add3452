package nvidiatest_test

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/nvidia/hami"
	"github.com/heteroflow/heteroflow/task-driver/share/nvidia/mig"
	"github.com/heteroflow/heteroflow/task-driver/share/nvidia/mps"
	"github.com/heteroflow/heteroflow/task-driver/share/nvidia/nvidiatest"
)

const (
	divided  = "GPU-00000000-0000-0000-0000-000000000001" // in MIG mode
	first    = "GPU-00000000-0000-0000-0000-000000000002"
	second   = "GPU-00000000-0000-0000-0000-000000000003"
	stateDir = "/var/lib/heteroflow/shares"
)

// world is a machine, what runs on it, and the driver's processes one after the other.
type world struct {
	t       *testing.T
	m       *nvidiatest.Machine
	random  *rand.Rand
	running map[string][]share.Held // tasks, which outlive the driver, and their own records of their shares
	starts  int
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{
		t: t, running: map[string][]share.Held{}, random: rand.New(rand.NewPCG(seed, 7)), //nolint:gosec // a walk that can be repeated
		m: nvidiatest.New(t, nvidiatest.H100NVL(divided), nvidiatest.L40S(first), nvidiatest.L40S(second)),
	}
	w.m.Add(0, 19, 2)
	w.m.StartMPS(map[string]string{"CUDA_VISIBLE_DEVICES": "GPU-of-somebody"})
	var library bytes.Buffer
	h := elf.Header64{Type: uint16(elf.ET_DYN), Ehsize: 64}
	copy(h.Ident[:], elf.ELFMAG+"\x02\x01\x01")
	h.Version = uint32(elf.EV_CURRENT)
	if err := binary.Write(&library, binary.LittleEndian, h); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(w.m.Root, hami.DefaultLibrary)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, library.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

// process is a new process of the driver; it dies at the call of a tool, counted from 1. 0 is never.
func (w *world) process(dies int) *share.Manager {
	h := share.Host{Tool: &mortal{Tool: w.m.Tools, left: dies}, Root: w.m.Root, Dir: stateDir}
	return share.NewManager(share.Options{
		Registry: share.NewRegistry(mig.New(h), mps.New(h, mps.Options{}), hami.New(h, hami.Options{})),
		Dir:      h.Path(stateDir),
		Alive:    func(task string) bool { return len(w.running[task]) > 0 },
	})
}

// mortal is a tool at whose call the process dies: locks are given back by the kernel, and nothing else happens any more.
type mortal struct {
	share.Tool
	left int
}

func (m *mortal) Run(ctx context.Context, name string, args ...string) (share.Output, error) {
	m.left--
	if m.left == 0 && len(args)%2 == 0 {
		runtime.Goexit() // before the tool
	}
	out, err := m.Tool.Run(ctx, name, args...)
	if m.left == 0 {
		runtime.Goexit() // after it
	}
	return out, err
}

// lives runs a step of a process and reports whether it outlived it.
func lives(step func()) bool {
	done, alive := make(chan struct{}), false
	go func() {
		defer close(done)
		step()
		alive = true
	}()
	for {
		select {
		case <-done:
			return alive
		case <-time.After(20 * time.Millisecond):
			runtime.GC() // closes the files of those who died before, and so gives back their locks, as the kernel does
		}
	}
}

// asks are what a new task asks for: a MIG device, a share by MPS, or shares of two cards by HAMi.
func (w *world) asks(task string) []share.Ask {
	one := func(card string, form accel.Form, total, mib uint64, position, of int) share.Ask {
		return share.Ask{
			ID: share.NewID(task, accel.NVIDIA, card), TaskID: task, Vendor: accel.NVIDIA, Form: form, QoS: accel.Silver,
			Card: grant.Card{UUID: card, MemoryMiB: total}, MemoryMiB: mib, Position: position, Of: of, Container: true,
		}
	}
	size := []uint64{3000, 9000, 20000}[w.random.IntN(3)]
	switch w.random.IntN(4) {
	case 0:
		return []share.Ask{one(first, accel.Shared, 46068, size, 0, 2), one(second, accel.Shared, 46068, size, 1, 2)}
	case 1:
		return []share.Ask{one([]string{first, second}[w.random.IntN(2)], accel.Shared, 46068, size, 0, 1)}
	}
	return []share.Ask{one(divided, accel.MIG, 95830, size, 0, 1)}
}

// step does one thing that happens on a machine.
func (w *world) step() {
	dies := 0
	if w.random.IntN(2) == 0 {
		dies = 1 + w.random.IntN(12)
	}
	switch w.random.IntN(12) {
	case 0:
		w.m.KillMPS()
		w.m.StartMPS(map[string]string{"CUDA_VISIBLE_DEVICES": "GPU-of-somebody"})
	case 1:
		if err := os.RemoveAll(filepath.Join(w.m.Root, stateDir)); err != nil {
			w.t.Fatal(err)
		}
	case 2:
		w.m.Set(0, func(c *nvidiatest.Card) { c.NoCompute = 1 })
	case 3, 4:
		lives(func() { _ = w.reconcile(w.process(dies)) }) // it is repeated at the end
	case 5, 6, 7:
		if tasks := slices.Sorted(maps.Keys(w.running)); len(tasks) > 0 {
			task := tasks[w.random.IntN(len(tasks))]
			held := w.running[task]
			delete(w.running, task) // its processes have ended; the driver gives back what it had, or dies
			lives(func() { _ = w.process(dies).Release(context.Background(), task, held...) })
		}
	default:
		w.starts++
		task := fmt.Sprintf("task/%d", w.starts)
		asks := w.asks(task)
		lives(func() {
			made, err := w.process(dies).Prepare(context.Background(), asks, func(string) {})
			if err != nil {
				return
			}
			if _, err := share.Combine(made); err != nil {
				w.t.Errorf("%s: %v", task, err)
			}
			for _, one := range made {
				w.running[task] = append(w.running[task], one.Held)
			}
		})
	}
}

func (w *world) reconcile(m *share.Manager) error {
	return m.Reconcile(context.Background(), func(context.Context) (share.Live, error) {
		live := share.Live{Tasks: map[string]bool{}, Complete: true}
		for task, held := range w.running {
			live.Tasks[task] = true
			live.Held = append(live.Held, held...)
		}
		return live, nil
	})
}

// check compares the machine with what runs.
func (w *world) check(when string) {
	w.t.Helper()
	instances, daemons, folders := 0, map[string]bool{}, map[share.ID]bool{}
	for _, held := range w.running {
		for _, h := range held {
			switch h.Backend {
			case mig.Name:
				instances++
			case mps.Name:
				daemons[h.Ask.Card.UUID] = true
			case hami.Name:
				folders[h.Ask.ID] = true
			}
		}
	}
	if got := w.m.Instances(); len(got) != instances+1 {
		w.t.Errorf("%s: %d tasks hold a GPU instance, and on the card are, with a stranger's: %v", when, instances, got)
	}
	if got := w.m.Daemons(); len(got) != len(daemons)+1 {
		w.t.Errorf("%s: cards with shares by MPS are %v, and daemons, with a stranger's: %v", when, daemons, got)
	}
	entries, err := os.ReadDir(filepath.Join(w.m.Root, stateDir, "nvidia/hami/shares"))
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	for _, e := range entries {
		if !folders[share.ID(e.Name())] {
			w.t.Errorf("%s: the folder of %s belongs to no task", when, e.Name())
		}
	}
}

// TestRandomWalk lets things happen in random order, the death of the driver at any call of a tool among them, and looks after
// each of them, once a reconcile has been left alone, for what belongs to no task or is missing. HETEROFLOW_TEST_SEEDS says how
// many walks are made.
func TestRandomWalk(t *testing.T) {
	t.Parallel()
	seeds := 20
	if text := os.Getenv("HETEROFLOW_TEST_SEEDS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		seeds = n
	}
	for seed := range seeds {
		w := newWorld(t, uint64(seed))
		for n := range 10 {
			for range 1 + w.random.IntN(4) {
				w.step()
			}
			var err error
			if !lives(func() { err = w.reconcile(w.process(0)) }) || err != nil {
				t.Errorf("seed %d, step %d: reconcile: %v", seed, n, err)
			}
			w.check(fmt.Sprintf("seed %d, step %d", seed, n))
			if t.Failed() {
				t.Fatalf("calls:\n%s", strings.Join(w.m.Calls(), "\n"))
			}
		}
	}
}

//go:build unix

package share

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
)

// Processes that make and give back shares on one folder are killed for real. Their machine is a folder too: a file for each
// part of the card.

const childFolder = "HETEROFLOW_TEST_SHARE_FOLDER"

// folder is a backend whose parts are files.
type folder struct {
	*stub
	dir string
}

func (f folder) Prepare(_ context.Context, a Ask, _ func(string)) (Setup, error) {
	body, err := json.Marshal(a)
	if err == nil {
		err = os.WriteFile(filepath.Join(f.dir, string(a.ID)), body, 0o600)
	}
	if err != nil {
		return Setup{}, err
	}
	return Setup{}, f.check()
}

// check leaves a note when the card is given away twice. It is called under the backend's lock.
func (f folder) check() error {
	held := uint64(0)
	parts, err := f.parts()
	for _, a := range parts {
		held += a.MemoryMiB
	}
	if held > cardMiB {
		return os.WriteFile(filepath.Join(f.dir, "..", "wrong"), fmt.Appendf(nil, "%d MiB are given away", held), 0o600)
	}
	return err
}

func (f folder) parts() (map[ID]Ask, error) {
	parts := map[ID]Ask{}
	err := grant.ReadFiles(f.dir, "", func(name string, body []byte) error {
		var a Ask
		if json.Unmarshal(body, &a) != nil {
			a.MemoryMiB = 0 // killed while it was written: it holds nothing yet
		}
		parts[ID(name)] = a
		return nil
	})
	return parts, err
}

func (f folder) Release(_ context.Context, id ID) error {
	return ignoreGone(os.Remove(filepath.Join(f.dir, string(id))))
}

func (f folder) Reconcile(ctx context.Context, live map[ID]Ask) error {
	parts, err := f.parts()
	for id := range parts {
		if _, is := live[id]; !is {
			err = errors.Join(err, f.Release(ctx, id))
		}
	}
	return err
}

// folderManager is a manager over folders below dir, as a process of its own makes it.
func folderManager(dir string, alive func(string) bool) *Manager {
	return NewManager(Options{
		Registry: NewRegistry(folder{newStub("mps", accel.Silver), filepath.Join(dir, "machine")}), Dir: filepath.Join(dir, "shares"),
		Alive: alive, Maker: strconv.Itoa(os.Getpid()),
		MakerRuns: func(maker string) bool {
			pid, err := strconv.Atoi(maker)
			return err == nil && syscall.Kill(pid, 0) == nil
		},
	})
}

// TestChild is the process that is killed: it is run by TestKill only.
func TestChild(t *testing.T) {
	dir := os.Getenv(childFolder)
	if dir == "" {
		t.Skip("it is the child of another test")
	}
	var mu sync.Mutex
	mine := map[string]bool{}
	set := func(task string, lives bool) {
		mu.Lock()
		defer mu.Unlock()
		mine[task] = lives
	}
	m := folderManager(dir, func(task string) bool {
		mu.Lock()
		defer mu.Unlock()
		return mine[task]
	})
	for n := 0; ; n++ {
		task := fmt.Sprintf("%d-%d", os.Getpid(), n)
		a := part(task, uint64(1+rand.IntN(cardMiB)))
		a.Card = grant.Card{UUID: "GPU-1", MemoryMiB: cardMiB}
		set(task, true)
		_, err := m.Prepare(t.Context(), []Ask{a}, func(string) {})
		var occupied *OccupiedError
		if err != nil && !errors.As(err, &occupied) {
			t.Fatal(err)
		}
		set(task, false)
		if err := m.Release(t.Context(), task); err != nil {
			t.Fatal(err)
		}
	}
}

func TestKill_TwoProcessesOnOneFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	machine := filepath.Join(dir, "machine")
	if err := os.Mkdir(machine, 0o755); err != nil {
		t.Fatal(err)
	}
	const rounds = 40
	var outputs []*strings.Builder
	spawn := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0], "-test.run=^TestChild$")
		cmd.Env = append(os.Environ(), childFolder+"="+dir)
		out := &strings.Builder{}
		outputs = append(outputs, out)
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	end := func(cmd *exec.Cmd) {
		t.Helper()
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
		if err := cmd.Wait(); err == nil || cmd.ProcessState.Exited() {
			t.Errorf("a process ended by itself: %v", outputs)
		}
	}
	old := spawn()
	for round := range rounds {
		young := spawn()
		awaitChange(t, machine, 1+round%5)
		end(old)
		old = young
	}
	end(old)
	if note, err := os.ReadFile(filepath.Join(dir, "wrong")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s (%v)", note, err)
	}
	m := folderManager(dir, func(string) bool { return false })
	nothing := func(context.Context) (Live, error) { return Live{Complete: true}, nil }
	if err := m.Reconcile(t.Context(), nothing); err != nil {
		t.Error(err)
	}
	entries, err := m.Entries()
	parts, partsErr := os.ReadDir(machine)
	if errors.Join(err, partsErr) != nil || len(entries)+len(parts) > 0 {
		t.Errorf("left: %v, %v (%v)", entries, parts, errors.Join(err, partsErr))
	}
}

// awaitChange waits until a folder has been changed so many times.
func awaitChange(t *testing.T, dir string, times int) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	var last time.Time
	for times >= 0 {
		info, err := os.Stat(dir)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("nothing happens: %v", err)
		}
		if !info.ModTime().Equal(last) {
			last = info.ModTime()
			times--
		}
		time.Sleep(time.Millisecond)
	}
}

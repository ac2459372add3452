package makertest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

// TB is what fakes need of a test, rapid's too.
type TB interface {
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// birenNode begins the path of a card's node.
const birenNode = "/dev/biren/card_"

// BRSMI is a fake brsmi of three cards that keeps how they are divided, and the nodes below root.
type BRSMI struct {
	*sharetest.Tools
	t     TB
	mu    sync.Mutex
	root  string
	parts map[int]int
	extra map[int][]int // numbers of the nodes that a division made

	// What tests change before they begin.
	Used    map[int]int // MiB in use
	Renames bool        // dividing a card takes the node of another
}

// NewBRSMI is three whole cards, whose nodes are made below root.
func NewBRSMI(t TB, root string) *BRSMI {
	f := &BRSMI{t: t, root: root, parts: map[int]int{0: 1, 1: 1, 2: 1}, extra: map[int][]int{}, Used: map[int]int{}}
	for n := range f.parts {
		f.node(n, true)
	}
	f.Tools = sharetest.NewTools(map[string]func([]string) share.Output{"brsmi": f.Call})
	return f
}

func (f *BRSMI) path(n int) string { return filepath.Join(f.root, birenNode+strconv.Itoa(n)) }

func (f *BRSMI) node(n int, there bool) {
	if !there {
		if err := os.Remove(f.path(n)); err != nil {
			f.t.Errorf("node of a card: %v", err)
		}
		return
	}
	if err := os.MkdirAll(filepath.Dir(f.path(n)), 0o755); err != nil {
		f.t.Errorf("node of a card: %v", err)
	}
	if err := os.WriteFile(f.path(n), nil, 0o600); err != nil {
		f.t.Errorf("node of a card: %v", err)
	}
}

// Things lists the cards that are divided.
func (f *BRSMI) Things() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for index, parts := range f.parts {
		if parts > 1 {
			out = append(out, fmt.Sprintf("card %d in %d", index, parts))
		}
	}
	slices.Sort(out)
	return out
}

// Call calls the tool as anybody may.
func (f *BRSMI) Call(args []string) share.Output {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case len(args) == 3 && strings.HasPrefix(args[1], "--query-gpu=index,svi.mode.current,memory.used"):
		var b strings.Builder
		for _, index := range slices.Sorted(maps.Keys(f.parts)) {
			mode := "Disabled"
			if f.parts[index] > 1 {
				mode = "Enabled"
			}
			fmt.Fprintf(&b, "%d, %s, %d\n", index, mode, f.Used[index])
		}
		return share.Output{Stdout: b.String()}
	case len(args) == 6 && args[1] == "set" && args[2] == "-s" && args[4] == "-i":
		return f.set(args[3], args[5])
	}
	return share.Output{Stderr: "unknown command", ExitCode: 2}
}

func (f *BRSMI) set(mode, card string) share.Output {
	index, err := strconv.Atoi(card)
	parts, known := map[string]int{"0": 1, "1": 2, "2": 4}[mode]
	switch {
	case err != nil || !known || f.parts[index] == 0:
		return share.Output{Stderr: "invalid argument", ExitCode: 2}
	case f.Used[index] > 0:
		return share.Output{Stderr: "device or resource busy", ExitCode: 16}
	case parts > 1 && f.parts[index] > 1:
		return share.Output{Stderr: "already enabled", ExitCode: 1}
	}
	for _, n := range f.extra[index] {
		f.node(n, false)
	}
	f.extra[index] = nil
	f.parts[index] = parts
	for n := 3; len(f.extra[index]) < parts-1; n++ {
		if _, err := os.Stat(f.path(n)); err != nil {
			f.node(n, true)
			f.extra[index] = append(f.extra[index], n)
		}
	}
	if f.Renames && parts > 1 {
		f.node(2, false)
	}
	return share.Output{}
}

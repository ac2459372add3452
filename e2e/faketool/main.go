//go:build linux

// Command faketool stands in for the makers' tools by which cards are divided: one program for all of them, around the fakes
// that the backends' own tests use. What a tool made is kept in a folder, so that it outlives every process of the driver, and
// calls can be made to fail, to hang, or to take the driver with them. Outputs that only show cards are brandtest's to play.
//
//	faketool DIR TOOL ARGUMENTS…   is the tool
//	faketool DIR things            prints what the tools have made, a line for each
//
// A file DIR/fault makes one call go wrong: its lines are what happens (see strike), how many calls that fit pass before, and a
// regular expression for "TOOL ARGUMENTS…". It is removed when it has happened.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker/makertest"
	"github.com/heteroflow/heteroflow/task-driver/share/nvidia/nvidiatest"
)

func main() {
	if dir := os.Getenv(daemonVariable); dir != "" && filepath.Base(os.Args[0]) == controlProgram {
		end(runDaemon())
	}
	if len(os.Args) < 3 {
		end(errors.New("write: faketool DIR TOOL ARGUMENTS, or faketool DIR things"))
	}
	dir, name, args := os.Args[1], os.Args[2], os.Args[3:]
	if name == "things" {
		end(printThings(dir))
	}
	out, err := run(dir, name, args)
	if err != nil {
		end(err)
	}
	fmt.Fprint(os.Stdout, out.Stdout)
	fmt.Fprint(os.Stderr, out.Stderr)
	os.Exit(out.ExitCode)
}

func end(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "faketool:", err)
		os.Exit(97)
	}
	os.Exit(0)
}

// run is one call of a tool. The lock is held while it does what it does, and no longer: a call that hangs must not stop others.
func run(dir, name string, args []string) (share.Output, error) {
	f, err := takeFault(dir, strings.Join(append([]string{name}, args...), " "))
	if err != nil {
		return share.Output{}, err
	}
	if out, done, err := f.strike(false); done || err != nil {
		return out, err
	}
	out, err := do(dir, name, args)
	if err != nil {
		return out, err
	}
	if struck, done, err := f.strike(true); done || err != nil {
		return struck, err
	}
	return out, nil
}

func do(dir, name string, args []string) (share.Output, error) {
	if name == controlProgram {
		return control(dir, args)
	}
	unlock, err := lock(dir)
	if err != nil {
		return share.Output{}, err
	}
	defer unlock()
	m, err := load(dir)
	if err != nil {
		return share.Output{}, err
	}
	before := m.things()
	out, err := m.run(name, args)
	if err != nil {
		return out, err
	}
	switch now := m.things(); {
	case slices.Equal(before, now): // what changed nothing need not be done again
	case len(now) == 0: // as at the beginning
		err = os.Remove(m.history)
	default:
		err = m.note(name, args)
	}
	return out, err
}

// lock makes one call wait for another.
func lock(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil // it is closed when the process ends, too
}

// machine are the tools as they are after all calls so far, which are done again: the fakes keep their state in memory.
type machine struct {
	history string
	tools   map[string]share.Tool
	cards   *nvidiatest.Machine
	made    []interface{ Things() []string }
}

// load makes the machine anew. The cards that nvidia-smi shows are told by DIR/nvidia.json: a UUID for each kind.
func load(dir string) (*machine, error) {
	uuids := map[string]string{}
	body, err := os.ReadFile(filepath.Join(dir, "nvidia.json"))
	if err == nil {
		err = json.Unmarshal(body, &uuids)
	}
	if err != nil {
		return nil, err
	}
	root := filepath.Join(dir, "nvidia")
	cards := []nvidiatest.Card{nvidiatest.H100NVL(uuids["mig"]), nvidiatest.L40S(uuids["first"]), nvidiatest.L40S(uuids["second"])}
	m := &machine{history: filepath.Join(dir, "history"), cards: nvidiatest.At(reporter{}, root, cards...)}
	npu, smlu, sgpu := makertest.NewNPUSMI(), makertest.NewSMLUs(), makertest.NewSGPUs()
	xpu := makertest.NewXPUToolkit("5.0.21.26")
	m.made = []interface{ Things() []string }{npu, smlu, sgpu}
	m.tools = map[string]share.Tool{
		"nvidia-smi": m.cards, "npu-smi": npu, "hy-smi": makertest.NewHySMI(), "xpu-container-cli": xpu, "/usr/bin/xpu-container-runtime": xpu,
		"/usr/local/libexec/heteroflow/cambricon-smlu": smlu, "/usr/local/libexec/heteroflow/mthreads-sgpu": sgpu,
	}
	history, err := os.ReadFile(m.history)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for line := range bytes.Lines(history) {
		var call []string
		if err := json.Unmarshal(line, &call); err != nil {
			return nil, err
		}
		if _, err := m.run(call[0], call[1:]); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// reporter is where the fakes say what went wrong with files of theirs.
type reporter struct{}

func (reporter) Error(args ...any) { fmt.Fprintln(os.Stderr, args...) }

func (m *machine) run(name string, args []string) (share.Output, error) {
	tool, ok := m.tools[name]
	if !ok {
		return share.Output{}, fmt.Errorf("%s is none of the tools", name)
	}
	out, err := tool.Run(context.Background(), name, args...)
	if len(args) > 0 && args[0] == "setup" {
		// What a container on this machine can have in place of the maker's node and runtime.
		var lines []string
		for line := range strings.Lines(out.Stdout) {
			switch word, _, _ := strings.Cut(line, " "); word {
			case "node":
				line = "node /dev/null:/dev/mtgpu.part\n"
			case "runtime":
				line = "runtime runc\n"
			}
			lines = append(lines, line)
		}
		out.Stdout = strings.Join(lines, "")
	}
	return out, err
}

// note adds a call to the history.
func (m *machine) note(name string, args []string) error {
	line, err := json.Marshal(append([]string{name}, args...))
	if err != nil {
		return err
	}
	f, err := os.OpenFile(m.history, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// things is what has been made, sorted.
func (m *machine) things() []string {
	var out []string
	for _, made := range m.made {
		out = append(out, made.Things()...)
	}
	for _, i := range m.cards.Instances() {
		out = append(out, "MIG "+i)
	}
	slices.Sort(out)
	return out
}

func printThings(dir string) error {
	unlock, err := lock(dir)
	if err != nil {
		return err
	}
	m, err := load(dir)
	unlock()
	if err != nil {
		return err
	}
	for _, thing := range m.things() {
		fmt.Println(thing)
	}
	daemons, err := daemons(dir)
	for _, d := range daemons {
		fmt.Printf("MPS daemon %d of %s\n", d.pid, d.card)
	}
	return err
}

package dev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	service "github.com/heteroflow/heteroflow/api/client"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/embedded/client"
)

func TestMain(m *testing.M) {
	client.Helper() // the embedded engine starts this program again, as it does the real one
	os.Exit(m.Run())
}

// buffer collects what a part prints, for reading while it still prints.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// eventually waits for a condition, and fails the test with its last complaint.
func eventually(t *testing.T, what string, within time.Duration, ok func() error) {
	t.Helper()
	var last error
	for deadline := time.Now().Add(within); time.Now().Before(deadline); clock.Sleep(t.Context(), clock.System(), 50*time.Millisecond) {
		if last = ok(); last == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, last)
}

func buildPlugins(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, program := range programs {
		cmd := exec.Command("go", "build", "-o", dir+"/", "../../"+program)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", program, err, out)
		}
	}
	return dir
}

// running is one started machine.
type running struct {
	stop   context.CancelFunc
	ended  chan error
	out    *buffer
	errors *buffer
	url    string // of the placement service
}

var serviceURL = regexp.MustCompile(`placement service +(http://\S+)`)

func start(t *testing.T, o Options) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{stop: cancel, ended: make(chan error, 1), out: &buffer{}, errors: &buffer{}}
	t.Cleanup(cancel)
	o.Stdout, o.Stderr, o.LogLevel = r.out, r.errors, hclog.Warn
	o.Addr, o.GatewayAddr, o.EngineAddr = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	go func() { r.ended <- Run(ctx, o) }()
	eventually(t, "start", 2*time.Minute, func() error {
		select {
		case err := <-r.ended:
			t.Fatalf("it ended: %v\n%s", err, r.errors)
		default:
		}
		found := serviceURL.FindStringSubmatch(r.out.String())
		if found == nil {
			return errors.New(r.errors.String())
		}
		r.url = found[1]
		return nil
	})
	return r
}

// end is Ctrl-C.
func (r *running) end(t *testing.T) {
	t.Helper()
	r.stop()
	select {
	case err := <-r.ended:
		if err != nil {
			t.Fatalf("it ended with %v\n%s", err, r.errors)
		}
	case <-time.After(2 * time.Minute):
		t.Fatalf("it does not end\n%s", r.errors)
	}
}

const jobText = `
job "sleeper" {
  group "g" {
    task "t" {
      driver = "heteroflow"
      config {
        runtime = "process"
        command = "/bin/sh"
        args    = ["-c", "echo $$ > %s; exec sleep 3600"]
        accelerator { memory = "8GiB" }
      }
    }
  }
}
`

// TestRun starts everything, runs a task on a simulated card, stops, looks for leftovers, and starts again: the job
// goes on.
func TestRun(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a whole machine")
	}
	bin := buildPlugins(t)
	for _, kind := range []string{Embedded, Nomad} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath("nomad"); kind == Nomad && err != nil {
				t.Skip("nomad is not on PATH")
			}
			data := t.TempDir()
			pidFile := filepath.Join(data, "pid")
			o := Options{Engine: kind, DataDir: data, BinDir: bin}

			r := start(t, o)
			if key, err := os.ReadFile(filepath.Join(data, "admin.key")); err != nil || strings.Contains(r.errors.String(), strings.TrimSpace(string(key))) {
				t.Errorf("the admin key is not in its file alone: %v\n%s", err, r.errors)
			}
			checkCards(t, r.url)
			submit(t, r.url, fmt.Sprintf(jobText, pidFile))
			first := taskPID(t, pidFile, 0)
			second := Options{Engine: kind, DataDir: data, BinDir: bin, Stdout: io.Discard, Stderr: io.Discard, Addr: "127.0.0.1:0", GatewayAddr: "127.0.0.1:0", EngineAddr: "127.0.0.1:0"}
			if err := Run(t.Context(), second); err == nil || !strings.Contains(err.Error(), "in use by process "+strconv.Itoa(os.Getpid())) {
				t.Errorf("a second one over the same data: %v", err)
			}
			r.end(t)
			if alive(first) {
				t.Errorf("the task, process %d, still runs", first)
			}
			leftovers(t, data)

			r = start(t, o)
			again := taskPID(t, pidFile, first)
			r.end(t)
			if alive(again) {
				t.Errorf("the task, process %d, still runs", again)
			}
			leftovers(t, data)
		})
	}
}

func checkCards(t *testing.T, url string) {
	t.Helper()
	c, err := service.NewClientWithResponses(url)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "every brand", time.Minute, func() error {
		answer, err := c.ListGPUsWithResponse(t.Context(), &service.ListGPUsParams{})
		if err != nil {
			return err
		}
		brands := map[string]bool{}
		if answer.JSON200 != nil {
			for _, g := range answer.JSON200.Items {
				brands[g.Vendor] = true
			}
		}
		if len(brands) != len(accel.Vendors()) {
			return fmt.Errorf("%d brands", len(brands))
		}
		return nil
	})
}

func submit(t *testing.T, url, text string) {
	t.Helper()
	nomad, err := api.NewClient(&api.Config{Address: url})
	if err != nil {
		t.Fatal(err)
	}
	job, err := nomad.Jobs().ParseHCL(text, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := nomad.Jobs().Register(job, nil); err != nil {
		t.Fatal(err)
	}
}

// taskPID waits until the task has written another pid than before.
func taskPID(t *testing.T, file string, before int) (pid int) {
	t.Helper()
	eventually(t, "the task", 90*time.Second, func() error {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if pid, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			return err
		}
		if pid == before {
			return errors.New("it was not started again")
		}
		return nil
	})
	return pid
}

// alive does not count one that has ended and whose status nobody has fetched yet.
func alive(pid int) bool {
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(state), ") Z ")
}

// leftovers looks for processes whose command line names the data folder.
func leftovers(t *testing.T, data string) {
	t.Helper()
	eventually(t, "nothing is left", 10*time.Second, func() error {
		lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			return err
		}
		for _, line := range lines {
			text, err := os.ReadFile(line)
			if err == nil && bytes.Contains(text, []byte(data)) {
				return fmt.Errorf("%s: %s", line, bytes.ReplaceAll(text, []byte{0}, []byte{' '}))
			}
		}
		return nil
	})
}

func TestRun_WhatCanBeWrong(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"unknown engine":  {Options{Engine: "slurm"}, `engine "slurm" is not known: write auto, embedded or nomad`},
		"no nomad":        {Options{Engine: Nomad, NomadPath: "/nowhere/nomad"}, "write -engine=embedded"},
		"missing plugins": {Options{Engine: Embedded, BinDir: "/nowhere"}, `Build all programs with "make build"`},
	} {
		c.o.DataDir, c.o.Stdout, c.o.Stderr = t.TempDir(), io.Discard, io.Discard
		if err := Run(t.Context(), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v does not say %q", name, err, c.want)
		}
	}
}

//go:build unix

package vendorcli_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/device-plugins/vendorcli"
)

// kind is what callers tell errors apart by.
func kind(err error) string {
	var start *fs.PathError
	switch {
	case err == nil:
		return "none"
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "absent"
	case errors.As(err, &start):
		return "not started: " + start.Err.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "time limit"
	}
	return err.Error()
}

// A recording is played as it was made: results, failures, and an answer that changes.
func TestReplay_AnswersAsRecorded(t *testing.T) {
	t.Parallel()
	count := filepath.Join(t.TempDir(), "count")
	changing := script(t, "echo x >> "+count+"; wc -l < "+count+"; echo bad >&2; exit 4\n")
	noProgram := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(noProgram, []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	noRight := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(noRight, []byte("#!/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	hanging := script(t, "echo partial; exec sleep 600\n")
	type result struct {
		Out   vendorcli.Output
		Error string
	}
	ask := func(r vendorcli.Runner) (all []result) {
		for _, argv := range [][]string{{changing, "-a"}, {changing, "-b"}, {changing, "-a"}, {noProgram}, {noRight}, {"no-such-tool-anywhere"}, {hanging}} {
			limit := 30 * time.Second
			if argv[0] == hanging {
				limit = 300 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			out, err := r.Run(ctx, argv[0], argv[1:]...)
			cancel()
			if argv[0] == hanging {
				out.Stdout = "" // it may have been stopped before it printed
			}
			all = append(all, result{out, kind(err)})
		}
		path, err := r.Look("sh")
		all = append(all, result{vendorcli.Output{Stdout: path}, kind(err)})
		_, err = r.Look("no-such-tool-anywhere")
		return append(all, result{Error: kind(err)})
	}
	recorder := vendorcli.Record(vendorcli.Host{})
	want := ask(recorder)
	made := recorder.Recording()
	if diff := cmp.Diff(want, ask(vendorcli.Replay(made))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if c := made.Calls[0]; c.Took <= 0 || c.ExitCode != 4 || c.Stderr != "bad\n" || c.Argv[1] != "-a" {
		t.Errorf("recorded %+v", c)
	}
	if want[6].Error != "time limit" || want[5].Error != "absent" || want[4].Error != "not started: permission denied" {
		t.Errorf("%+v", want)
	}
}

func TestReplay_CallsNobodyMade(t *testing.T) {
	t.Parallel()
	p := vendorcli.Replay(vendorcli.Recording{Calls: []vendorcli.Call{{Argv: []string{"tool", "-a"}, Stdout: "x"}, {Argv: nil}}})
	for range 3 { // the last answer holds
		if out, err := p.Run(context.Background(), "tool", "-a"); err != nil || out.Stdout != "x" {
			t.Errorf("%+v, %v", out, err)
		}
	}
	if _, err := p.Run(context.Background(), "tool", "-b"); !errors.Is(err, vendorcli.ErrNotRecorded) {
		t.Errorf("error %v", err)
	}
	if _, err := p.Run(context.Background(), "other"); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := p.Run(ctx, "tool", "-a"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// lost is a runner whose call is never answered.
type lost struct{ vendorcli.Host }

func (lost) Run(context.Context, string, ...string) (vendorcli.Output, error) { select {} }

// A call that is stuck in the kernel is in the recording all the same.
func TestRecorder_CallThatNeverReturns(t *testing.T) {
	t.Parallel()
	r := vendorcli.Record(lost{})
	go r.Run(context.Background(), "tool", "-x")
	for deadline := time.Now().Add(10 * time.Second); len(r.Recording().Calls) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the call is not noted")
		}
	}
	if c := r.Recording().Calls[0]; c.Failure != vendorcli.TimeLimit || c.ExitCode != -1 {
		t.Errorf("recorded %+v", c)
	}
}

func TestRecorder_IsBounded(t *testing.T) {
	t.Parallel()
	r := vendorcli.Record(vendorcli.Replay(vendorcli.Recording{Calls: []vendorcli.Call{{Argv: []string{"t"}, Stdout: "x"}}}))
	for range 2100 {
		if _, err := r.Run(context.Background(), "t"); err != nil {
			t.Fatal(err)
		}
	}
	if made := r.Recording(); len(made.Calls) != 2000 || made.Dropped != 100 {
		t.Errorf("%d calls, %d dropped", len(made.Calls), made.Dropped)
	}
}

package share

import (
	"context"
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestExec_BoundByItsContext(t *testing.T) {
	t.Parallel()
	out, err := Exec{}.Run(t.Context(), "sh", "-c", "echo out; echo err >&2; exit 3")
	if err != nil || out != (Output{Stdout: "out\n", Stderr: "err\n", ExitCode: 3}) {
		t.Errorf("got %+v, %v", out, err)
	}
	if _, err := (Exec{}).Run(t.Context(), "heteroflow-no-such-tool"); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := (Exec{}).Run(ctx, "sh", "-c", "sleep 1000 & wait"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// A tool that leaves a daemon with its output open has ended when it has, and all that it printed counts.
func TestExec_DaemonHoldsTheOutput(t *testing.T) {
	t.Parallel()
	out, err := Exec{}.Run(t.Context(), "sh", "-c", "sleep 1000 & echo $!; seq 1 20000; echo no >&2; exit 4")
	if err != nil || out.ExitCode != 4 || out.Stderr != "no\n" {
		t.Errorf("%v; status %d, %q", err, out.ExitCode, out.Stderr)
	}
	pid, rest, _ := strings.Cut(out.Stdout, "\n")
	if n := strings.Count(rest, "\n"); n != 20000 || !strings.HasSuffix(rest, "\n20000\n") {
		t.Errorf("%d lines of 20000 came", n)
	}
	daemon, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(daemon, syscall.SIGKILL); err != nil {
		t.Errorf("the daemon does not live on: %v", err)
	}
}

// What nobody had the time to read before the tool ended is not lost.
func TestStream_NotReadBeforeTheEnd(t *testing.T) {
	t.Parallel()
	s, err := newStream()
	if err != nil {
		t.Fatal(err)
	}
	other, err := syscall.Dup(int(s.to.Fd())) // a daemon's
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(other)
	want := strings.Repeat("x", 50000)
	if _, err := s.to.WriteString(want); err != nil {
		t.Fatal(err)
	}
	close(s.ended) // nothing has read
	if got := s.rest(); got != want {
		t.Errorf("%d bytes of %d came", len(got), len(want))
	}
}

// A tool that prints without end is kept in bounds until its time is over.
func TestExec_OutputIsBounded(t *testing.T) {
	t.Parallel()
	out, err := Exec{}.Run(t.Context(), "head", "-c", "3000000", "/dev/zero")
	if err != nil || len(out.Stdout) != maxOutput {
		t.Errorf("%v; %d bytes", err, len(out.Stdout))
	}
}

//go:build unix

package vendorcli_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/device-plugins/vendorcli"
)

func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRun_StatusIsAFact(t *testing.T) {
	t.Parallel()
	out, err := vendorcli.Run(context.Background(), script(t, "echo good; echo bad >&2; exit 15\n"))
	if err != nil {
		t.Fatal(err)
	}
	if out.Stdout != "good\n" || out.Stderr != "bad\n" || out.ExitCode != 15 {
		t.Errorf("got %+v", out)
	}
}

func TestRun_NotInstalled(t *testing.T) {
	t.Parallel()
	if _, err := vendorcli.Run(context.Background(), "no-such-tool-anywhere"); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("error = %v, want exec.ErrNotFound", err)
	}
}

func TestRun_LanguageIsFixed(t *testing.T) {
	t.Parallel()
	out, err := vendorcli.Run(context.Background(), script(t, "echo $LC_ALL\n"))
	if err != nil || out.Stdout != "C\n" {
		t.Errorf("got %q, %v", out.Stdout, err)
	}
}

func TestRun_HangingToolAndItsChildrenAreKilled(t *testing.T) {
	t.Parallel()
	pidFile := filepath.Join(t.TempDir(), "pid")
	tool := script(t, "sleep 600 & echo $! > "+pidFile+"; echo partial; wait\n")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // the time limit: it ends once the child is known
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			if b, err := os.ReadFile(pidFile); err == nil && strings.HasSuffix(string(b), "\n") {
				break
			}
		}
		cancel()
	}()
	if _, err := vendorcli.Run(ctx, tool); !errors.Is(err, context.Canceled) {
		t.Fatalf("error = %v, want context.Canceled", err)
	}
	b, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		state, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(state), ") Z ") || syscall.Kill(pid, 0) != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("child %d outlived its tool", pid)
		}
	}
}

func TestRun_OutputIsBounded(t *testing.T) {
	t.Parallel()
	out, err := vendorcli.Run(context.Background(), script(t, "head -c 2000000 /dev/zero\n"))
	if err != nil || len(out.Stdout) != 1<<20 {
		t.Errorf("kept %d bytes, error %v", len(out.Stdout), err)
	}
}

// A tool that prints for ever is stopped long before its time is over: reading it would take a whole processor.
func TestRun_EndlessOutputEndsTheTool(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"stdout": "yes\n", "stderr": "yes >&2\n", "a child": "yes & wait\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			out, err := vendorcli.Run(ctx, script(t, body))
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "prints without end") || ctx.Err() != nil {
				t.Errorf("error = %v", err)
			}
			if len(out.Stdout)+len(out.Stderr) != 1<<20 {
				t.Errorf("kept %d bytes", len(out.Stdout)+len(out.Stderr))
			}
		})
	}
}

func TestRun_WhatAToolLeavesBehindIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	pidFile := filepath.Join(t.TempDir(), "pid")
	out, err := vendorcli.Run(context.Background(), script(t, "sleep 600 & echo $! > "+pidFile+"; echo good; exit 3\n"))
	if err != nil || out.Stdout != "good\n" || out.ExitCode != 3 {
		t.Errorf("got %+v, %v", out, err)
	}
	b, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("what it left behind has ended: %v", err)
	}
}

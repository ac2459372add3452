//go:build unix

package vendorcli_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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
	wantEnd(t, pidIn(t, pidFile))
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

func TestRun_WhatAToolLeavesBehindIsKilled(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("what a tool leaves behind is told on Linux only")
	}
	pidFile := filepath.Join(t.TempDir(), "pid")
	out, err := vendorcli.Run(context.Background(), script(t, "sleep 600 & echo $! > "+pidFile+"; echo good; exit 3\n"))
	if err != nil || out.Stdout != "good\n" || out.ExitCode != 3 {
		t.Errorf("got %+v, %v", out, err)
	}
	wantEnd(t, pidIn(t, pidFile))
}

// What holds the stream of a tool open in a session of its own is not waited for, nor killed: it was meant to stay.
func TestRun_ADaemonIsLeftAlone(t *testing.T) {
	t.Parallel()
	setsid, err := exec.LookPath("setsid")
	if err != nil {
		t.Skip("there is no setsid: ", err)
	}
	pidFile := filepath.Join(t.TempDir(), "pid")
	body := setsid + " sh -c 'echo $$ > " + pidFile + ".new; mv " + pidFile + ".new " + pidFile + "; exec sleep 600' &\nwhile ! [ -e " + pidFile + " ]; do :; done; echo good\n"
	out, err := vendorcli.Run(t.Context(), script(t, body))
	if err != nil || out.Stdout != "good\n" {
		t.Errorf("got %+v, %v", out, err)
	}
	if err := syscall.Kill(pidIn(t, pidFile), syscall.SIGKILL); err != nil {
		t.Errorf("the daemon has ended: %v", err)
	}
}

// pidIn waits for the number of a process in a file.
func pidIn(t *testing.T, file string) int {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if b, err := os.ReadFile(file); err == nil && strings.HasSuffix(string(b), "\n") {
			pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatal("no process wrote its number")
	return 0
}

// wantEnd waits for the end of a process.
func wantEnd(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		state, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(state), ") Z ") || syscall.Kill(pid, 0) != nil {
			return
		}
		if time.Now().After(deadline) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			t.Fatalf("process %d has not ended", pid)
		}
	}
}

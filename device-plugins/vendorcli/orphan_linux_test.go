package vendorcli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/heteroflow/heteroflow/device-plugins/vendorcli"
)

// orphanTool names the tool that this test's program runs when it is started again as its own child.
const orphanTool = "VENDORCLI_TEST_TOOL"

// A tool that hangs must not outlive the plugin, also when that is killed: it would hang there for ever.
func TestRun_HangingToolEndsWithItsCaller(t *testing.T) {
	if tool := os.Getenv(orphanTool); tool != "" {
		_, err := vendorcli.Run(t.Context(), tool)
		t.Fatalf("the tool ended: %v", err)
	}
	t.Parallel()
	pidFile := filepath.Join(t.TempDir(), "pid")
	caller := exec.Command(os.Args[0], "-test.run=^TestRun_HangingToolEndsWithItsCaller$")
	caller.Env = append(os.Environ(), orphanTool+"="+script(t, "echo $$ > "+pidFile+"; exec sleep 600\n"))
	if err := caller.Start(); err != nil {
		t.Fatal(err)
	}
	pid := pidIn(t, pidFile)
	if err := caller.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := caller.Wait(); err == nil {
		t.Error("the caller ended by itself")
	}
	wantEnd(t, pid)
}

// What a tool itself started is not ended by the kernel when the plugin is killed: the next plugin ends it. What belongs to a
// plugin that lives, and what was meant to stay, is left alone.
func TestEndOrphans(t *testing.T) {
	if tool := os.Getenv(orphanTool); tool != "" {
		_, err := vendorcli.Run(t.Context(), tool)
		t.Fatalf("the tool ended: %v", err)
	}
	t.Parallel()
	start := func(body string) (*exec.Cmd, int) {
		t.Helper()
		pidFile := filepath.Join(t.TempDir(), "pid")
		caller := exec.Command(os.Args[0], "-test.run=^TestEndOrphans$")
		caller.Env = append(os.Environ(), orphanTool+"="+script(t, strings.ReplaceAll(body, "FILE", pidFile)))
		if err := caller.Start(); err != nil {
			t.Fatal(err)
		}
		return caller, pidIn(t, pidFile)
	}
	kill := func(caller *exec.Cmd) {
		t.Helper()
		if err := caller.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := caller.Wait(); err == nil {
			t.Error("the caller ended by itself")
		}
	}
	const child = "sleep 600 & echo $! > FILE; wait\n"
	killed, orphan := start(child)
	living, kept := start(child)
	kill(killed)
	if syscall.Kill(orphan, 0) != nil {
		t.Fatal("the child of the tool ended with the plugin: there is nothing to test")
	}
	if n := vendorcli.EndOrphans(); n < 1 {
		t.Errorf("%d processes were ended", n)
	}
	wantEnd(t, orphan)
	if err := syscall.Kill(kept, 0); err != nil {
		t.Errorf("what a living plugin's tool started is gone: %v", err)
	}
	kill(living)
	vendorcli.EndOrphans()
	wantEnd(t, kept)
	if setsid, err := exec.LookPath("setsid"); err == nil {
		caller, daemon := start(setsid + " sh -c 'echo $$ > FILE; exec sleep 600' & wait; exec sleep 600\n")
		kill(caller)
		vendorcli.EndOrphans()
		if err := syscall.Kill(daemon, syscall.SIGKILL); err != nil {
			t.Errorf("a daemon is gone: %v", err)
		}
	}
}

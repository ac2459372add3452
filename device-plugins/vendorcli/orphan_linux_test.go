package vendorcli_test

import (
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
	deadline := time.Now().Add(20 * time.Second)
	pid := 0
	for ; pid == 0 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if b, err := os.ReadFile(pidFile); err == nil && strings.HasSuffix(string(b), "\n") {
			if pid, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := caller.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := caller.Wait(); err == nil {
		t.Error("the caller ended by itself")
	}
	for ; ; time.Sleep(5 * time.Millisecond) {
		state, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(state), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			t.Fatalf("the tool, %d, outlived its caller", pid)
		}
	}
}

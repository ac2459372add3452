package dev

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

func TestEndLeftover(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "agent.hcl")
	if err := endLeftover(t.Context(), config); err != nil {
		t.Errorf("the first start: %v", err)
	}
	start := func(config string) *exec.Cmd {
		cmd := exec.Command("/bin/sh", "-c", "read forever", "agent", "-config", config)
		in, err := cmd.StdinPipe() // never written: the read lasts until the process is ended
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { in.Close() })
		if err := os.WriteFile(pidFile(config), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	ours := start(config)
	ended := make(chan error, 1)
	go func() { ended <- ours.Wait() }()
	if err := endLeftover(t.Context(), config); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("the agent that was left ended by itself")
	}

	other := start(filepath.Join(t.TempDir(), "agent.hcl"))
	if err := os.WriteFile(pidFile(config), []byte(strconv.Itoa(other.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := endLeftover(t.Context(), config); err != nil {
		t.Error(err)
	}
	if err := other.Process.Kill(); err != nil { // it would be gone if its pid had been trusted
		t.Errorf("a process of others was ended: %v", err)
	}
	if err := other.Wait(); err == nil {
		t.Error("the other process ended by itself")
	}
}

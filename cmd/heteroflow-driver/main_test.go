package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/nomadplugintest"
	"github.com/heteroflow/heteroflow/task-driver/docker/dockertest"
)

// build makes the binary once per test that needs it, under the name it is installed by.
func build(t testing.TB) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "heteroflow")
	cmd := exec.Command("go", "build", "-o", binary, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return binary
}

func TestConformance_Process(t *testing.T) {
	t.Parallel()
	config := map[string]any{
		"state_dir": t.TempDir(), "docker": map[string]any{"enabled": false}, "process": map[string]any{"enabled": true},
	}
	task := map[string]any{"runtime": "process", "command": "/bin/sh", "args": []string{"-c", "echo the task is up; exec sleep 1000"}}
	nomadplugintest.TestDriver(t, build(t), config, task, nomadplugintest.WithOutput("the task is up"))
}

func TestConformance_Docker(t *testing.T) {
	host := dockertest.Real(t)
	config := map[string]any{"state_dir": t.TempDir(), "docker": map[string]any{"endpoint": host}}
	task := map[string]any{"image": dockertest.Image, "network_mode": "none", "args": []string{"sleep"}}
	nomadplugintest.TestDriver(t, build(t), config, task, nomadplugintest.WithExec([]string{"/hftask", "echo", "hello"}, "hello"))
}

func TestMain_WithoutNomad(t *testing.T) {
	t.Parallel()
	binary := build(t)
	out, err := exec.Command(binary, "version").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "heteroflow-driver ") {
		t.Errorf("version: %v, %q", err, out)
	}
	out, err = exec.Command(binary).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "plugin") {
		t.Errorf("started by hand: %v, %q", err, out)
	}
}

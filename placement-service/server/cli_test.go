package server_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const shareFile = `
job "llm" {
  datacenters = ["dc1"]
  group "serve" {
    task "engine" {
      driver = "heteroflow"
      config {
        image = "example/app:1"
        accelerator {
          memory = "MEMORY"
        }
      }
      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
`

// TestCLI drives the unmodified nomad CLI, every version that is on PATH, with NOMAD_ADDR at the service.
func TestCLI_Unmodified(t *testing.T) {
	t.Parallel()
	found := 0
	for _, name := range []string{"nomad", "nomad-1.6"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		found++
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testCLI(t, path)
		})
	}
	if found == 0 {
		t.Skip("SKIPPED: no nomad on PATH, so the unmodified CLI is not tested")
	}
}

func testCLI(t *testing.T, nomad string) {
	s, _ := start(t, one())
	dir := t.TempDir()
	file := func(memory string) string {
		path := filepath.Join(dir, memory+".nomad.hcl")
		if err := os.WriteFile(path, []byte(strings.Replace(shareFile, "MEMORY", memory, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	run := func(wantCode int, wantText []string, args ...string) string {
		t.Helper()
		cmd := exec.Command(nomad, args...)
		cmd.Env = append(os.Environ(), "NOMAD_ADDR="+s.addr, "NOMAD_CLI_NO_COLOR=1")
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		code := 0
		if errors.As(err, &exit) {
			code = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != wantCode {
			t.Errorf("nomad %v ended with %d, want %d:\n%s", args, code, wantCode, out)
		}
		flat := strings.Join(strings.Fields(string(out)), " ")
		for _, text := range wantText {
			if !strings.Contains(flat, text) {
				t.Errorf("nomad %v does not print %q:\n%s", args, text, out)
			}
		}
		return string(out)
	}
	run(0, []string{"Job validation successful"}, "job", "validate", file("20GiB"))
	run(1, []string{`write "20GiB" or "20MiB"`}, "job", "validate", file("20"))
	run(1, []string{`write "20GiB" or "20MiB"`}, "job", "run", file("20"))
	run(1, []string{"All tasks successfully allocated"}, "job", "plan", file("20GiB"))
	run(0, []string{"finished with status \"complete\""}, "job", "run", file("20GiB"))
	run(0, []string{"All tasks successfully allocated"}, "job", "plan", file("20GiB"))
	run(0, []string{"Status = running"}, "job", "status", "llm")
	run(0, nil, "job", "run", "-detach", file("20GiB"))
	run(0, nil, "job", "stop", "-purge", "llm")
	eventually(t, "the card is free", func() bool { return s.usedUnits() == 0 })

	s.register(share("holder", 1, "70GiB"))
	run(2, []string{"waiting for additional capacity", "20 GiB", "10 GiB"}, "job", "run", file("20GiB"))
	run(0, []string{"Status = pending"}, "job", "status", "llm")
	run(0, []string{"pending", "running"}, "job", "status")
	run(1, []string{"WARNING: Failed to place all allocations", "10 GiB"}, "job", "plan", file("30GiB"))
	run(0, nil, "job", "stop", "llm")
}

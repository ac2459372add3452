package embedded_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const webJob = `job "web/a" {
  group "g" {
    count = 2
    network {
      port "http" {}
    }
    task "t" {
      driver = "mock_driver"
      config {
        run_for = "1h"
      }
      resources {
        cpu    = 100
        memory = 64
        device "nvidia/vgpu" {
          count = 20
        }
      }
    }
  }
}
`

// TestCLI drives the engine with the unmodified command lines of Nomad that are on PATH.
func TestCLI(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"nomad", "nomad-1.6"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, err := exec.LookPath(name)
			if err != nil {
				t.Skipf("no %s on PATH: the engine is not driven by that command line here", name)
			}
			driveCLI(t, path)
		})
	}
}

func driveCLI(t *testing.T, path string) {
	e, c := start(t, oneNode())
	file := filepath.Join(t.TempDir(), "web.nomad.hcl")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(wantCode int, wants []string, args ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Env = append(os.Environ(), "NOMAD_ADDR="+e.Addr(), "NOMAD_TOKEN=", "NOMAD_NAMESPACE=", "NOMAD_CLI_NO_COLOR=1")
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != wantCode {
			t.Fatalf("%s %s ended with %d (%v), want %d:\n%s", path, strings.Join(args, " "), code, err, wantCode, out)
		}
		for _, want := range wants {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s %s does not say %q:\n%s", path, strings.Join(args, " "), want, out)
			}
		}
	}
	write(webJob)
	run(0, []string{"Job validation successful"}, "job", "validate", file)
	run(1, []string{`+ Job: "web/a"`, "2 create", "All tasks successfully allocated", "Job Modify Index: 0"}, "job", "plan", file)
	run(0, []string{`finished with status "complete"`, "Deployment completed successfully"}, "job", "run", file)
	run(0, []string{"2 ignore", "All tasks successfully allocated"}, "job", "plan", file)
	before := running(t, c, "web/a")
	run(0, []string{`finished with status "complete"`}, "job", "run", file)
	if after := running(t, c, "web/a"); len(after) != 2 || len(before) != 2 || after[0].ID != before[0].ID {
		t.Errorf("the second run changed what runs: %d before, %d after", len(before), len(after))
	}
	run(0, []string{"web/a", "running"}, "job", "status")
	run(0, []string{"Running", "Latest Deployment", "successful"}, "job", "status", "web/a")
	run(0, []string{"ready", "eligible"}, "node", "status")
	run(0, []string{"Allocated Resources", "nvidia/vgpu/A100-SXM4-80GB"}, "node", "status", before[0].NodeID)
	run(0, []string{"is \"running\"", "64 MiB"}, "alloc", "status", before[0].ID)
	run(0, []string{"nothing runs here"}, "alloc", "logs", before[0].ID)
	run(0, []string{"Monitoring evaluation"}, "job", "scale", "web/a", "3")
	eventually(t, "three run", func() bool { return len(running(t, c, "web/a")) == 3 })
	write(strings.Replace(webJob, "count = 20", "count = 81", 1))
	run(1, []string{"missing devices"}, "job", "plan", file)
	write(strings.Replace(webJob, "count = 2\n", "count = 5\n", 1))
	run(1, []string{"2 create", "devices: no devices match request"}, "job", "plan", file)
	run(1, []string{"Enforcing job modify index 0: job already exists"}, "job", "run", "-check-index=0", file)
	write(strings.NewReplacer("web/a", "work", "group", "type = \"batch\"\n group", "count = 20", "count = 40").Replace(webJob))
	run(2, []string{"waiting for additional capacity to place remainder"}, "job", "run", file)
	run(0, []string{`finished with status "complete"`}, "job", "stop", "web/a")
	eventually(t, "the waiting job runs", func() bool { return len(running(t, c, "work")) == 2 })
	run(0, []string{"dead (stopped)"}, "job", "status", "web/a")
	run(0, []string{"Monitoring evaluation"}, "job", "stop", "-purge", "work")
}

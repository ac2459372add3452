package device

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// An agent's administrator hears of it before a job waits for it.
func TestFingerprint_WarnsOfAStateDirThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		dir  string
		warn bool
	}{
		"a new folder":       {filepath.Join(t.TempDir(), "new", "folder"), false},
		"below a file":       {filepath.Join(file, "state"), true},
		"a file":             {file, true},
		"a folder of others": {"/proc/heteroflow", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if trouble := StateTrouble(c.dir); (trouble != "") != c.warn && name != "a folder of others" { // access(2) lets root write in /proc
				t.Errorf("trouble is %q", trouble)
			}
			if _, err := os.Stat(c.dir); c.dir != file && err == nil {
				t.Error("looking made the folder")
			}
			var log bytes.Buffer
			p := start(t, func(cfg *Config) { cfg.StateDir = c.dir }, &bench{name: "x", cards: []accel.Card{good("GPU-a", "")}})
			p.log = hclog.New(&hclog.LoggerOptions{Output: &log})
			p.checkState()
			if told := strings.Contains(log.String(), "state_dir cannot be written"); told != c.warn || told && !strings.Contains(log.String(), c.dir) {
				t.Errorf("log:\n%s", log.String())
			}
			if c.warn {
				return
			}
			if left, err := os.ReadDir(c.dir); err != nil || len(left) > 0 {
				t.Errorf("left in the folder: %v, %v", left, err)
			}
		})
	}
}

package client

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
)

func TestStateStore_SetsAsideWhatDoesNotRead(t *testing.T) {
	t.Parallel()
	s := stateStore{t.TempDir()}
	want := &allocState{
		Alloc: newAlloc("true"), Healthy: ptr(true), HealthOf: "d1",
		Tasks: map[string]*taskState{"web": {
			State: &api.TaskState{State: "running", StartedAt: time.Unix(5, 0).UTC()}, TaskID: "x", Handle: []byte{1, 2}, Reserved: true,
			DeviceEnv: map[string]string{"A": "b"}, Restart: restartState{Count: 1, Start: time.Unix(4, 0).UTC()},
		}},
	}
	if err := s.put(want); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"cut.json": `{"alloc":`, "other.json": `{"alloc":{"ID":"else"}}`, ".tmp-1": "x", "note.txt": "x"} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.load(hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]*allocState{want}, got); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	for _, name := range []string{"cut.json.bad", "other.json.bad"} {
		if _, err := os.Stat(filepath.Join(s.dir, name)); err != nil {
			t.Errorf("%s was not set aside: %v", name, err)
		}
	}
	if err := s.remove(want.Alloc.ID); err != nil {
		t.Fatal(err)
	}
	if err := s.remove(want.Alloc.ID); err != nil {
		t.Errorf("second removal: %v", err)
	}
}

// TestRun_UnreadableReattachFile has the engine say which file is in its way.
func TestRun_UnreadableReattachFile(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.Up = newUplink()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.path("plugins.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Run(t.Context()); err == nil {
		t.Error("started with a file that does not read")
	}
}

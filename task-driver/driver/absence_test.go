package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
)

// Nomad's server may be away for hours while a task ends: its client goes on to know the task, may be restarted, and may
// bring the driver back more than once before somebody asks how the task ended.
func TestExit_IsKeptUntilNomadCollectsIt(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		rig  func(*testing.T) *rig
		task map[string]any
		end  func(*testing.T, job)
	}{
		"process": {
			rig:  func(t *testing.T) *rig { return newRig(t, nil) },
			task: shell("while [ ! -e local/go ]; do sleep 0.05; done; exit 9"),
			end: func(t *testing.T, j job) {
				if err := os.WriteFile(filepath.Join(j.cfg.AllocDir, "web/local/go"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			},
		},
		"container": {
			rig: func(t *testing.T) *rig { r, _ := dockerRig(t, nil); return r }, task: app("exit", "9"),
			end: func(*testing.T, job) {},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := one.rig(t)
			j := r.job(one.task)
			h := r.start(j)
			h.Config.MsgpackDriverConfig = nil // Nomad does not store it
			keeper := r.task(j.cfg.Id).supervised().Supervisor
			r.Close() // nobody watches while the task ends
			one.end(t, j)
			eventually(t, func() bool { return !keeper.Alive() }, "the task does not end")
			for range 3 { // the driver is brought back, and an hour goes by in which nobody asks
				r.restart()
				if err := r.Recover(r.ctx, h); err != nil {
					t.Fatal(err)
				}
				r.sweepNow(r.ctx, time.Now().Add(time.Hour))
				r.sweepContainers(r.ctx, time.Now().Add(time.Hour))
				r.retryDestroys(r.ctx)
				if err := r.shares().Reconcile(r.ctx, r.liveShares); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // an answer that was lost is asked for again
				if exit := r.wait(j.cfg.Id); exit.ExitCode != 9 || exit.Signal != 0 {
					t.Errorf("exit = %v, want 9", exit)
				}
			}
			if err := r.Destroy(r.ctx, j.cfg.Id, false); err != nil {
				t.Fatal(err)
			}
			if err := r.Recover(r.ctx, h); err == nil {
				t.Error("a task was recovered whose end has been collected")
			}
		})
	}
}

func TestStats_AllTasksAtTheSameMoments(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, one := range map[string]struct{ late, want time.Duration }{
		"on the moment":          {0, time.Second},
		"a little after it":      {10 * time.Millisecond, 990 * time.Millisecond},
		"half way":               {500 * time.Millisecond, 500 * time.Millisecond},
		"too near to the next":   {900 * time.Millisecond, 1100 * time.Millisecond},
		"a moment before a tick": {time.Second - 1, time.Second + 1},
	} {
		if got := untilNext(at.Add(one.late), time.Second); got != one.want {
			t.Errorf("%s: %s, want %s", name, got, one.want)
		}
	}
}

func TestDocker_ARuntimeThatCameSinceTheLastLookIsFound(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	fake.SetRuntimes("runc")
	cards := func(c *driverpb.TaskConfig) { c.DeviceEnv = reserve(t, whole(accel.NVIDIA, "GPU-1")) }
	r.look(r.ctx)
	before := r.job(app("sleep"), cards)
	if _, _, err := r.Start(r.ctx, before.cfg); err == nil || !strings.Contains(err.Error(), "nvidia") {
		t.Fatalf("start without the runtime: %v", err)
	}
	fake.SetRuntimes("runc", "nvidia")
	after := r.job(app("sleep"), cards, func(c *driverpb.TaskConfig) { c.Id += "1" })
	r.start(after)
	asked := func() (n int) {
		for _, line := range fake.Requests() {
			if line == "GET /info" {
				n++
			}
		}
		return n
	}
	known := asked()
	r.start(r.job(app("sleep"), func(c *driverpb.TaskConfig) { c.Id += "2" }))
	if again := asked(); again != known {
		t.Errorf("the daemon was asked %d times more who it is, a moment after it said so", again-known)
	}
}

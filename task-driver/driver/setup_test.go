package driver

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/task-driver/docker"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

// demanding is a backend whose shares need more than variables.
type demanding struct {
	*sharetest.Sample
	setup share.Setup
}

func (d demanding) Prepare(ctx context.Context, a share.Ask, event func(string)) (share.Setup, error) {
	if _, err := d.Sample.Prepare(ctx, a, event); err != nil {
		return share.Setup{}, err
	}
	return d.setup, nil
}

func demandingRig(t *testing.T, setup share.Setup) *rig {
	t.Helper()
	r, _ := dockerRig(t, map[string]any{"volumes_enabled": true})
	r.Driver.backends = func(h share.Host) []share.Backend {
		return []share.Backend{demanding{sharetest.NewSample(h, accel.NVIDIA, "sample"), setup}}
	}
	r.useTool(r.cards)
	return r
}

func TestSetup_IsPutInLast(t *testing.T) {
	t.Parallel()
	r := demandingRig(t, share.Setup{
		Env: map[string]string{"LIMIT": "20480"}, Visible: "MIG-1", IPCHost: true,
		Mounts: []share.Mount{{Source: "/opt/limit.so", Target: "/usr/lib/limit.so", ReadOnly: true}},
	})
	config := app("sleep")
	config["env"] = map[string]string{"LIMIT": "none"}
	config["volumes"] = []string{"local/mine.so:/usr/lib/limit.so"}
	cfg := r.taskConfig(config, withSlices(t, 20))
	cfg.Env["LIMIT"], cfg.Env["CUDA_VISIBLE_DEVICES"] = "none", "all"
	p, run, err := r.plan(cfg)
	if err != nil {
		t.Fatal(err)
	}
	rec := newRecord(p)
	if err := r.makeShares(r.ctx, p, &rec, func(string) {}); err != nil {
		t.Fatal(err)
	}
	c, err := run.(*dockerRuntime).container(p, build{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"LIMIT=20480", "CUDA_VISIBLE_DEVICES=MIG-1", "NVIDIA_VISIBLE_DEVICES=MIG-1", "HETEROFLOW_CARDS=GPU-1"} {
		if !slices.Contains(c.Env, want) {
			t.Errorf("the environment lacks %s: %v", want, c.Env)
		}
	}
	at := func(m docker.Mount) bool { return m.Target == "/usr/lib/limit.so" }
	mounts := slices.DeleteFunc(slices.Clone(c.Mounts), func(m docker.Mount) bool { return !at(m) })
	if diff := cmp.Diff([]docker.Mount{{Type: "bind", Source: "/opt/limit.so", Target: "/usr/lib/limit.so", ReadOnly: true}}, mounts); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	if c.IPCMode != "host" || rec.Setup == nil || rec.Setup.Env["LIMIT"] != "20480" || len(rec.Shares) != 1 {
		t.Errorf("ipc %q, record %+v", c.IPCMode, rec)
	}
}

func TestSetup_AProcessCannotHaveMounts(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.Driver.backends = func(h share.Host) []share.Backend {
		return []share.Backend{demanding{sharetest.NewSample(h, accel.NVIDIA, "sample"), share.Setup{Mounts: []share.Mount{{Source: "/a", Target: "/b"}}}}}
	}
	r.useTool(r.cards)
	_, _, err := r.Start(r.ctx, r.job(shell("true"), withSlices(t, 20)).cfg)
	if err == nil || !strings.Contains(err.Error(), `use runtime = "docker"`) {
		t.Errorf("start: %v", err)
	}
	if len(r.parts()) > 0 || len(r.entries()) > 0 {
		t.Errorf("left: %v, %v", r.parts(), r.entries())
	}
}

package client

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/nomadplugintest/sample"
)

func TestNode(t *testing.T) {
	t.Parallel()
	r := start(t, testConfig(t))
	n := r.up.lastNode()
	for key, want := range map[string]string{
		"kernel.name": "linux", "driver.sample-driver": "1", "driver.sample-driver.version": "0.1.0", "driver.sample-driver.memory": "80GiB",
		"cpu.totalcompute": "4000", "memory.totalbytes": "4294967296",
	} {
		if n.Attributes[key] != want {
			t.Errorf("attribute %s is %q, want %q", key, n.Attributes[key], want)
		}
	}
	if d := n.NodeResources.Devices; len(d) != 1 || d[0].ID() != "sample/gpu/S1" || len(d[0].Instances) != 2 || *d[0].Attributes["memory"].IntVal != 1024 || d[0].Attributes["memory"].Unit != "MiB" {
		t.Errorf("devices: %+v", d)
	}
	if d := n.Drivers["sample-driver"]; !d.Detected || !d.Healthy {
		t.Errorf("driver: %+v", d)
	}
	control := filepath.Join(filepath.Dir(r.cfg.DataDir), "control.json")
	if err := writeJSON(control, sample.Control{Unhealthy: []string{"sample-1"}}); err != nil {
		t.Fatal(err)
	}
	until(t, "the unhealthy instance", func() bool { return !r.up.lastNode().NodeResources.Devices[0].Instances[1].Healthy })
	stats, err := r.HostStats()
	if err != nil || stats.Memory.Total == 0 || len(stats.CPU) == 0 || stats.Uptime == 0 {
		t.Errorf("host stats: %+v, %v", stats, err)
	}
	until(t, "device statistics", func() bool {
		stats, err := r.HostStats()
		return err == nil && len(stats.DeviceStats) == 1 && len(stats.DeviceStats[0].InstanceStats) == 2
	})
}

func TestRun_RefusesBadPlugins(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		plugin PluginConfig
		want   string
	}{
		"no such file":      {PluginConfig{Name: "none"}, "no such file"},
		"an unknown option": {PluginConfig{Name: "sample-device", Config: map[string]any{"cuont": 1}}, "cuont"},
		"a refused config":  {PluginConfig{Name: "sample-device", Config: map[string]any{"count": -1}}, "count -1 is negative"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t)
			cfg.Up, cfg.Plugins = newUplink(), []PluginConfig{tc.plugin}
			c, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Run(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}

func TestServiceAlloc_Life(t *testing.T) {
	t.Parallel()
	r := start(t, testConfig(t))
	alloc := newAlloc(`echo "$NOMAD_ALLOC_INDEX $NOMAD_PORT_http $NOMAD_ADDR_http $NOMAD_META_OWNER $USER_VALUE $SAMPLE_DEVICES ${attr.kernel.name}"; echo oops >&2; `+forever,
		withDevice("sample-1"), func(_ *api.Allocation, tg *api.TaskGroup, task *api.Task) {
			task.Env = map[string]string{"USER_VALUE": "at-${NOMAD_PORT_http}-${meta.rack}", "SAMPLE_DEVICES": "all"}
			task.Services = []*api.Service{{Name: "${NOMAD_JOB_NAME}-web", PortLabel: "http", Provider: "nomad", Tags: []string{"p=${NOMAD_PORT_http}"}}}
		})
	r.SetAllocs([]*api.Allocation{alloc})
	r.status(t, "running")
	until(t, "the log", func() bool { return strings.Contains(r.log(t, "stdout"), "\n") && r.log(t, "stderr") != "" })
	if diff := cmp.Diff("3 20123 127.0.0.1:20123 me at-20123-r1 sample-1 linux\n", r.log(t, "stdout")); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
	until(t, "the service", func() bool { return len(r.up.regs(allocID)) == 1 })
	if s := r.up.regs(allocID)[0]; s.ServiceName != "job-web" || s.Address != "127.0.0.1" || s.Port != 20123 || s.Tags[0] != "p=20123" || s.ID != "_nomad-task-"+allocID+"-web-job-web-http" {
		t.Errorf("service: %+v", s)
	}
	until(t, "statistics", func() bool {
		s, err := r.AllocStats(allocID, "")
		return err == nil && s.Tasks["web"] != nil && s.ResourceUsage.MemoryStats.RSS == 4096 && len(s.ResourceUsage.DeviceStats) == 1 &&
			s.ResourceUsage.DeviceStats[0].InstanceStats["sample-1"] != nil && len(s.ResourceUsage.DeviceStats[0].InstanceStats) == 1
	})
	r.SetAllocs([]*api.Allocation{alloc}) // again, changes nothing
	r.SetAllocs([]*api.Allocation{stopped(alloc)})
	u := r.status(t, "complete")
	if got, want := eventTypes(u.TaskStates["web"]), "Received, Task Setup, Started, Killing, Terminated, Killed"; got != want {
		t.Errorf("events %s, want %s", got, want)
	}
	if u.TaskStates["web"].Failed {
		t.Error("a killed task counts as failed")
	}
	if n := len(r.up.regs(allocID)); n != 0 {
		t.Errorf("%d services are left", n)
	}
	r.SetAllocs(nil)
	until(t, "the removal of the files", func() bool {
		_, err := os.Stat(r.allocRoot(allocID))
		_, err2 := os.Stat(r.store.path(allocID))
		return os.IsNotExist(err) && os.IsNotExist(err2)
	})
}

func TestBatchAlloc(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		script, want, events string
	}{
		"success": {"echo done", "complete", "Received, Task Setup, Started, Terminated"},
		"failure": {"exit 3", "failed", "Received, Task Setup, Started, Terminated, Not Restarting"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, testConfig(t))
			r.SetAllocs([]*api.Allocation{newAlloc(tc.script, batch)})
			u := r.status(t, tc.want)
			if got := eventTypes(u.TaskStates["web"]); got != tc.events {
				t.Errorf("events %s, want %s", got, tc.events)
			}
			if tc.want == "complete" && r.log(t, "stdout") != "done\n" {
				t.Errorf("log %q is not whole when the task is dead", r.log(t, "stdout"))
			}
		})
	}
}

func TestRestarts_KeepDevicesAndCount(t *testing.T) {
	t.Parallel()
	r := start(t, testConfig(t))
	r.SetAllocs([]*api.Allocation{newAlloc(`echo "run on $SAMPLE_DEVICES"; exit 1`, withDevice("sample-0"), func(_ *api.Allocation, _ *api.TaskGroup, task *api.Task) {
		task.RestartPolicy.Attempts = ptr(2)
	})})
	u := r.status(t, "failed")
	s := u.TaskStates["web"]
	if s.Restarts != 2 || !s.Failed {
		t.Errorf("restarts %d, failed %t", s.Restarts, s.Failed)
	}
	last := s.Events[len(s.Events)-1]
	if want := `Exceeded allowed attempts 2 in interval 1m0s and mode is "fail"`; last.Type != api.TaskNotRestarting || last.DisplayMessage != want {
		t.Errorf("last event %s %q, want %q", last.Type, last.DisplayMessage, want)
	}
	if got, want := r.log(t, "stdout"), strings.Repeat("run on sample-0\n", 3); got != want {
		t.Errorf("log %q, want %q", got, want)
	}
	b, err := os.ReadFile(filepath.Join(filepath.Dir(r.cfg.DataDir), "reserve.log"))
	if err != nil || string(b) != "sample-0\n" {
		t.Errorf("reserved %q, %v, want once", b, err)
	}
}

func TestStartFailures(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		change func(*api.Allocation, *api.TaskGroup, *api.Task)
		kind   string
		text   string
	}{
		"refused for good": {func(_ *api.Allocation, _ *api.TaskGroup, task *api.Task) {
			task.Config = map[string]any{"command": "refuse"}
		}, api.TaskDriverFailure, "this command is refused"},
		"refused for now, twice": {func(_ *api.Allocation, _ *api.TaskGroup, task *api.Task) {
			task.Config, task.RestartPolicy.Attempts = map[string]any{"command": "refuse-for-now"}, ptr(1)
		}, api.TaskRestarting, "Task restarting in 1ms"},
		"an unknown option": {func(_ *api.Allocation, _ *api.TaskGroup, task *api.Task) { task.Config["commnad"] = "x" }, api.TaskSetupFailure, "commnad"},
		"an unknown device": {withDevice("sample-9"), api.TaskSetupFailure, "unknown device"},
		"a bad template": {func(_ *api.Allocation, _ *api.TaskGroup, task *api.Task) {
			task.Templates = []*api.Template{{EmbeddedTmpl: ptr(`{{ key "x" }}`), DestPath: ptr("local/x")}}
		}, api.TaskSetupFailure, `function "key" not defined`},
		"a template that leaves the folder": {func(_ *api.Allocation, _ *api.TaskGroup, task *api.Task) {
			task.Templates = []*api.Template{{EmbeddedTmpl: ptr("x"), DestPath: ptr("../../../escape")}}
		}, api.TaskSetupFailure, "destination"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, testConfig(t))
			r.SetAllocs([]*api.Allocation{newAlloc(forever, tc.change)})
			u := r.status(t, "failed")
			for _, e := range u.TaskStates["web"].Events {
				if e.Type == tc.kind && strings.Contains(e.DisplayMessage, tc.text) {
					return
				}
			}
			t.Errorf("no event %s with %q among %s", tc.kind, tc.text, eventTypes(u.TaskStates["web"]))
		})
	}
}

func TestRefusesUnknownDriver(t *testing.T) {
	t.Parallel()
	r := start(t, testConfig(t))
	r.SetAllocs([]*api.Allocation{newAlloc(forever, func(_ *api.Allocation, _ *api.TaskGroup, task *api.Task) { task.Driver = "java" })})
	if u := r.status(t, "failed"); !strings.Contains(u.ClientDescription, `"java"`) {
		t.Errorf("description %q", u.ClientDescription)
	}
}

func TestTemplates(t *testing.T) {
	t.Parallel()
	r := start(t, testConfig(t))
	r.SetAllocs([]*api.Allocation{newAlloc(`cat local/conf; echo "$FROM_TEMPLATE $SAMPLE_DEVICES"`, batch, withDevice("sample-0"), func(_ *api.Allocation, _ *api.TaskGroup, task *api.Task) {
		task.Templates = []*api.Template{
			{EmbeddedTmpl: ptr("port {{ env \"NOMAD_PORT_http\" }}\n"), DestPath: ptr("${NOMAD_TASK_DIR}/conf"), Perms: ptr("0600")},
			{EmbeddedTmpl: ptr("# a comment\nexport FROM_TEMPLATE=\"a b\"\nSAMPLE_DEVICES=all\n"), DestPath: ptr("secrets/env"), Envvars: ptr(true)},
		}
	})})
	r.status(t, "complete")
	// The device environment loses against a template, as in Nomad: the driver trusts device_env instead.
	if got, want := r.log(t, "stdout"), "port 20123\na b all\n"; got != want {
		t.Errorf("log %q, want %q", got, want)
	}
	if info, err := r.Stat(allocID, "web/local/conf"); err != nil || info.FileMode != "-rw-------" {
		t.Errorf("stat: %+v, %v", info, err)
	}
	if _, err := r.Stat(allocID, "web/secrets/env"); err == nil {
		t.Error("a secret file was read")
	}
}

func TestLifecycle(t *testing.T) {
	t.Parallel()
	r := start(t, testConfig(t))
	r.SetAllocs([]*api.Allocation{newAlloc(`echo main >> ../alloc/data/order`, batch, func(_ *api.Allocation, tg *api.TaskGroup, task *api.Task) {
		add := func(name, hook, script string, sidecar bool) {
			other := *task
			other.Name, other.Lifecycle = name, &api.TaskLifecycle{Hook: hook, Sidecar: sidecar}
			other.Config = map[string]any{"command": "/bin/sh", "args": []any{"-c", script}}
			tg.Tasks = append(tg.Tasks, &other)
		}
		add("before", "prestart", "echo before >> ../alloc/data/order", false)
		add("beside", "prestart", forever, true)
		add("after", "poststop", "echo after >> ../alloc/data/order", false)
	})})
	u := r.status(t, "complete")
	b, err := os.ReadFile(filepath.Join(r.allocRoot(allocID), "alloc", "data", "order"))
	if err != nil || string(b) != "before\nmain\nafter\n" {
		t.Errorf("order %q, %v", b, err)
	}
	if got := eventTypes(u.TaskStates["beside"]); !strings.HasSuffix(got, "Killed") {
		t.Errorf("sidecar events: %s", got)
	}
}

func TestSiblingFailure(t *testing.T) {
	t.Parallel()
	r := start(t, testConfig(t))
	r.SetAllocs([]*api.Allocation{newAlloc("sleep 0.2; exit 1", func(_ *api.Allocation, tg *api.TaskGroup, task *api.Task) {
		other := *task
		other.Name, other.Config = "other", map[string]any{"command": "/bin/sh", "args": []any{"-c", forever}}
		tg.Tasks = append(tg.Tasks, &other)
	})})
	u := r.status(t, "failed")
	if got := eventTypes(u.TaskStates["other"]); !strings.Contains(got, api.TaskSiblingFailed) || u.TaskStates["other"].State != "dead" {
		t.Errorf("sibling is %s with events %s", u.TaskStates["other"].State, got)
	}
}

func TestHealthAndChecks(t *testing.T) {
	t.Parallel()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	port := lis.Addr().(*net.TCPAddr).Port
	r := start(t, testConfig(t))
	deploy := func(a *api.Allocation, tg *api.TaskGroup, task *api.Task) {
		a.DeploymentID = "d1"
		tg.Update = &api.UpdateStrategy{MinHealthyTime: ptr(50 * time.Millisecond), HealthyDeadline: ptr(20 * time.Second), HealthCheck: ptr("checks")}
		a.AllocatedResources.Shared.Ports[0].Value = port
		task.Services = []*api.Service{{Name: "web", PortLabel: "http", Provider: "nomad", Checks: []api.ServiceCheck{{Type: "tcp", Interval: 50 * time.Millisecond, Timeout: time.Second}}}}
	}
	r.SetAllocs([]*api.Allocation{newAlloc(forever, deploy)})
	until(t, "a healthy allocation", func() bool { h := r.up.alloc(allocID).Healthy; return h != nil && *h })
	checks, err := r.Checks(allocID)
	if err != nil || len(checks) != 1 {
		t.Fatalf("checks %v, %v", checks, err)
	}
	for _, c := range checks {
		if c.Status != "success" || c.Service != "web" {
			t.Errorf("check %+v", c)
		}
	}
}

func TestHealth_FailedTask(t *testing.T) {
	t.Parallel()
	r := start(t, testConfig(t))
	r.SetAllocs([]*api.Allocation{newAlloc("exit 1", func(a *api.Allocation, tg *api.TaskGroup, _ *api.Task) {
		a.DeploymentID = "d1"
		tg.Update = &api.UpdateStrategy{MinHealthyTime: ptr(time.Minute), HealthyDeadline: ptr(2 * time.Minute)}
	})})
	until(t, "an unhealthy allocation", func() bool { h := r.up.alloc(allocID).Healthy; return h != nil && !*h })
}

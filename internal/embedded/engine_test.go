package embedded_test

import (
	"context"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/embedded"
)

// start runs an engine until the test ends and returns a client of it.
func start(t *testing.T, cfg embedded.Config) (*embedded.Engine, *api.Client) {
	t.Helper()
	e, err := embedded.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("engine ended with %v", err)
		}
	})
	select {
	case <-e.Ready():
	case err := <-done:
		done <- nil
		t.Fatalf("engine did not start: %v", err)
	}
	c, err := api.NewClient(&api.Config{Address: e.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	return e, c
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// job is a service job of one group and one task.
func job(id string, count int, change func(*api.Job)) *api.Job {
	task := api.NewTask("t", "mock_driver")
	task.Resources = &api.Resources{CPU: new(100), MemoryMB: new(64)}
	j := api.NewServiceJob(id, id, "global", 50).AddTaskGroup(api.NewTaskGroup("g", count).AddTask(task))
	if change != nil {
		change(j)
	}
	return j
}

func device(name string, count uint64) func(*api.Job) {
	return func(j *api.Job) {
		j.TaskGroups[0].Tasks[0].Resources.Devices = []*api.RequestedDevice{{Name: name, Count: &count}}
	}
}

func register(t *testing.T, c *api.Client, j *api.Job) *api.JobRegisterResponse {
	t.Helper()
	out, _, err := c.Jobs().Register(j, nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func running(t *testing.T, c *api.Client, id string) []*api.Allocation {
	t.Helper()
	stubs, _, err := c.Jobs().Allocations(id, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out []*api.Allocation
	for _, s := range stubs {
		if s.ClientStatus == api.AllocClientStatusRunning && s.DesiredStatus == api.AllocDesiredStatusRun {
			a, _, err := c.Allocations().Info(s.ID, nil)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, a)
		}
	}
	return out
}

func TestEngine_RunsAJobOnASimulatedNode(t *testing.T) {
	t.Parallel()
	_, c := start(t, embedded.Config{SimNodes: embedded.SimNodes(1, 2, accel.NVIDIA, "A100-SXM4-80GB", 81920, accel.Shared)})
	out := register(t, c, job("a/b", 2, device("nvidia/vgpu", 20)))
	eventually(t, "both allocations run", func() bool { return len(running(t, c, "a/b")) == 2 })
	for _, a := range running(t, c, "a/b") {
		got := a.AllocatedResources.Tasks["t"].Devices
		if len(got) != 1 || len(got[0].DeviceIDs) != 20 {
			t.Errorf("allocation %s has devices %+v, want one entry of 20", a.ID, got)
		}
	}
	eval, _, err := c.Evaluations().Info(out.EvalID, nil)
	if err != nil || eval.Status != "complete" || eval.DeploymentID == "" {
		t.Fatalf("evaluation is %+v, %v; want complete with a deployment", eval, err)
	}
	eventually(t, "the deployment succeeds", func() bool {
		d, _, err := c.Deployments().Info(eval.DeploymentID, nil)
		return err == nil && d.Status == "successful"
	})
	if _, _, err := c.Jobs().Deregister("a/b", false, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the job is dead", func() bool {
		j, _, err := c.Jobs().Info("a/b", nil)
		return err == nil && *j.Status == "dead"
	})
}

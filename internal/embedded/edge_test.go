package embedded_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/embedded"
)

// TestEngine_ManyAtTheEdge submits more than fits from many sides at once: no slice is given twice, and no job is
// lost.
func TestEngine_ManyAtTheEdge(t *testing.T) {
	t.Parallel()
	const jobs, fit = 200, 8 * 16 // eight cards of 80 slices, 5 slices a job
	_, c := start(t, embedded.Config{SimNodes: embedded.SimNodes(2, 4, accel.NVIDIA, "A100-SXM4-80GB", 81920, accel.Shared)})
	var wg sync.WaitGroup
	for i := range jobs {
		wg.Go(func() {
			j := job(fmt.Sprintf("j%03d", i), 1, device("vgpu", 5))
			j.Type, j.Update = new("batch"), nil
			if _, _, err := c.Jobs().Register(j, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	placed := func() (holders map[string]string, waiting int) {
		allocs, _, err := c.Allocations().List(&api.QueryOptions{Params: map[string]string{"resources": "true"}})
		if err != nil {
			t.Fatal(err)
		}
		holders = map[string]string{}
		for _, a := range allocs {
			for _, d := range a.AllocatedResources.Tasks["t"].Devices {
				for _, id := range d.DeviceIDs {
					key := a.NodeID + d.Name + id
					if other := holders[key]; other != "" {
						t.Fatalf("slice %s is with %s and with %s", id, other, a.ID)
					}
					holders[key] = a.ID
				}
			}
		}
		evals, _, err := c.Evaluations().List(&api.QueryOptions{Params: map[string]string{"status": "blocked"}})
		if err != nil {
			t.Fatal(err)
		}
		return holders, len(evals)
	}
	eventually(t, "every job is placed or waits", func() bool {
		holders, waiting := placed()
		return len(holders) == fit*5 && waiting == jobs-fit
	})
}

func TestEngine_CardThatHealsStartsWhatWaits(t *testing.T) {
	t.Parallel()
	nodes := embedded.SimNodes(1, 1, accel.NVIDIA, "A100", 81920, accel.Whole)
	nodes[0].Cards[0].Health = accel.Health{Reason: "it fell off the bus"}
	e, c := start(t, embedded.Config{SimNodes: nodes})
	out := register(t, c, job("a", 1, device("nvidia/gpu", 1)))
	eventually(t, "it waits", func() bool {
		ev, _, err := c.Evaluations().Info(out.EvalID, nil)
		return err == nil && ev.FailedTGAllocs["g"] != nil && ev.FailedTGAllocs["g"].ConstraintFiltered["missing devices"] == 1
	})
	nodes[0].Cards[0].Health = accel.Health{OK: true}
	if err := e.SetNode(nodes[0]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it runs", func() bool { return len(running(t, c, "a")) == 1 })
}

func TestEngine_DropsEventsWhenToldTo(t *testing.T) {
	t.Parallel()
	e, c := start(t, oneNode())
	e.DropEvents(func(uint64) bool { return true })
	register(t, c, job("lost", 1, nil))
	eventually(t, "it runs", func() bool { return len(running(t, c, "lost")) == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.Addr()+"/v1/event/stream?topic=Job", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	lines.Scan()                      // the heartbeat at once
	time.Sleep(20 * time.Millisecond) // lets the stream reach the end of the buffer; too short only weakens the test
	e.DropEvents(nil)
	register(t, c, job("seen", 1, nil))
	for lines.Scan() {
		var batch api.Events
		if err := json.Unmarshal(lines.Bytes(), &batch); err != nil {
			t.Fatal(err)
		}
		for _, ev := range batch.Events {
			if ev.Key == "seen" {
				return
			}
		}
	}
	t.Error("the stream ended before the event that was not dropped")
}

func TestEngine_SystemJobFollowsTheNodes(t *testing.T) {
	t.Parallel()
	e, c := start(t, embedded.Config{SimNodes: embedded.SimNodes(3, 1, accel.AMD, "MI300X", 196608, accel.Whole)})
	j := job("agent", 1, nil)
	j.Type, j.Update = new("system"), nil
	register(t, c, j)
	eventually(t, "it runs on three nodes", func() bool { return len(running(t, c, "agent")) == 3 })
	if err := e.SetNodeDown(running(t, c, "agent")[0].NodeID, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it runs on two nodes", func() bool { return len(running(t, c, "agent")) == 2 })
	for _, n := range embedded.SimNodes(3, 1, accel.AMD, "MI300X", 196608, accel.Whole) {
		if err := e.SetNode(n); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "it runs on three again", func() bool { return len(running(t, c, "agent")) == 3 })
}

func TestEngine_FailedUpdateGoesBackToTheStableVersion(t *testing.T) {
	t.Parallel()
	_, c := start(t, oneNode())
	spec := func(change func(*api.Task)) *api.Job {
		j := job("a", 1, nil)
		j.Update = &api.UpdateStrategy{
			AutoRevert: new(true), ProgressDeadline: new(50 * time.Millisecond), HealthyDeadline: new(20 * time.Millisecond), MinHealthyTime: new(time.Millisecond),
		}
		change(j.TaskGroups[0].Tasks[0])
		return j
	}
	register(t, c, spec(func(*api.Task) {}))
	eventually(t, "the first version is stable", func() bool {
		j, _, err := c.Jobs().Info("a", nil)
		return err == nil && *j.Stable
	})
	register(t, c, spec(func(t *api.Task) { t.Config = map[string]any{"start_error": "no such image"} }))
	eventually(t, "the stable version runs again", func() bool {
		j, _, err := c.Jobs().Info("a", nil)
		if err != nil {
			t.Fatal(err)
		}
		return *j.Version == 2 && len(j.TaskGroups[0].Tasks[0].Config) == 0 && len(running(t, c, "a")) == 1
	})
	deployments, _, err := c.Jobs().Deployments("a", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	var told bool
	for _, d := range deployments {
		told = told || strings.HasSuffix(d.StatusDescription, "rolling back to job version 0")
	}
	if !told {
		t.Errorf("no deployment says that it was rolled back: %+v", deployments)
	}
}

func TestEngine_CollectForgetsWhatIsOver(t *testing.T) {
	t.Parallel()
	_, c := start(t, oneNode())
	for _, id := range []string{"stopped", "purged", "runs"} {
		register(t, c, job(id, 1, nil))
		eventually(t, id+" runs", func() bool { return len(running(t, c, id)) == 1 })
	}
	for _, id := range []string{"stopped", "purged"} {
		if _, _, err := c.Jobs().Deregister(id, id == "purged", nil); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "two ended", func() bool {
		allocs, _, err := c.Allocations().List(nil)
		if err != nil {
			t.Fatal(err)
		}
		over := 0
		for _, a := range allocs {
			if a.ClientStatus == "complete" {
				over++
			}
		}
		return over == 2
	})
	eventually(t, "only what runs is left", func() bool {
		if err := c.System().GarbageCollect(); err != nil {
			t.Fatal(err)
		}
		allocs, _, err := c.Allocations().List(nil)
		if err != nil {
			t.Fatal(err)
		}
		jobs, _, err := c.Jobs().List(nil)
		if err != nil {
			t.Fatal(err)
		}
		deployments, _, err := c.Deployments().List(nil)
		if err != nil {
			t.Fatal(err)
		}
		return len(allocs) == 1 && len(jobs) == 1 && jobs[0].ID == "runs" && len(deployments) == 1
	})
	if len(running(t, c, "runs")) != 1 {
		t.Error("what runs was forgotten")
	}
}

func TestHTTP_RefusesWhatIsTooLarge(t *testing.T) {
	t.Parallel()
	e, _ := start(t, oneNode())
	status, text, _ := call(t, "PUT", e.Addr()+"/v1/jobs", `{"Job":{"ID":"`+strings.Repeat("x", 33<<20)+`"}}`)
	if status != http.StatusRequestEntityTooLarge || !strings.Contains(text, "32 MiB") {
		t.Errorf("got %d %q", status, text)
	}
}

// FuzzRegister holds the register endpoint to an answer of its own for any body: 200, 400 or a reasoned 500.
func FuzzRegister(f *testing.F) {
	f.Add(`{"Job":{"ID":"a","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Driver":"d"}]}]}}`)
	f.Add(`{"Job":{"ID":"a","Type":"batch","Periodic":{"Spec":"x"},"TaskGroups":[null]}}`)
	f.Add(`{"Job":{"ID":"a","TaskGroups":[{"Name":null,"Tasks":[null],"Networks":[null],"Services":[null],"Constraints":[null]}]}}`)
	e, err := embedded.New(embedded.Config{})
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	<-e.Ready()
	f.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			f.Error(err)
		}
	})
	f.Fuzz(func(t *testing.T, body string) {
		for _, path := range []string{"/v1/jobs", "/v1/job/a/plan", "/v1/validate/job"} {
			status, text, _ := call(t, "PUT", e.Addr()+path, body)
			if strings.Contains(text, "the engine failed to answer") {
				t.Errorf("%s: %d %s for %q", path, status, text, body)
			}
		}
	})
}

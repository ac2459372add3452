package watch

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/nomadapi"
)

// A purge takes allocations out of Nomad without an event: the watcher looks for them itself.
func TestWatcher_PurgedAllocationsAreForgotten(t *testing.T) {
	t.Parallel()
	there := map[string]*api.Allocation{
		"stopping": {ID: "stopping", Namespace: "default", JobID: "j", NodeID: "n1", ClientStatus: "running"},
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := there[strings.TrimPrefix(r.URL.Path, "/v1/allocation/")]
		if a == nil {
			http.Error(w, "alloc not found", http.StatusNotFound)
			return
		}
		json.NewEncoder(w).Encode(a) //nolint:errcheck // a test server
	}))
	defer s.Close()
	nomad, err := nomadapi.New(nomadapi.Config{Addr: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	world, job := NewWorld(), JobKey{"default", "j"}
	w := New(Config{Nomad: nomad, World: world, Log: hclog.NewNullLogger()})
	for _, id := range []string{"purged", "stopping"} {
		world.setAlloc(&Alloc{ID: id, Job: job, NodeID: "n1", Client: "running", Devices: []Device{{Task: "t", Group: "g", IDs: []string{id}}}}, now)
	}
	left, err := w.lookFor(t.Context(), job)
	if err != nil || !left {
		t.Fatalf("one is still stopping: %v, %v", left, err)
	}
	if live := world.LiveAllocs(job); len(live) != 1 || live[0].ID != "stopping" || !w.dirty[job] {
		t.Errorf("want the purged one forgotten and the job to be settled, got %v", live)
	}
	delete(there, "stopping")
	if left, err := w.lookFor(t.Context(), job); err != nil || left || len(world.LiveAllocs(job)) != 0 {
		t.Errorf("nothing is left: %v, %v", left, err)
	}
}

func TestDepartures_LessAndLessOftenAndNotForEver(t *testing.T) {
	t.Parallel()
	d, job := newDepartures(), JobKey{"default", "j"}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	d.add(job, now)
	looks := 0
	for end := now.Add(2 * departFor); now.Before(end); {
		jobs, wait := d.due(now)
		if len(jobs) == 0 {
			now = now.Add(wait)
			continue
		}
		looks++
		d.looked(job, true, now)
	}
	if looks < 10 || looks > 100 || len(d.jobs) != 0 {
		t.Errorf("%d looks within %s, %d jobs left", looks, departFor, len(d.jobs))
	}
}

// Nomad 1.6 says of a purge only that an evaluation was made for it; 2.0 also says that the job was deregistered.
func TestWatcher_EitherSignOfAPurgeIsSeen(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]nomadapi.Event{
		"evaluation": {Topic: "Evaluation", Type: "JobDeregistered", Payload: json.RawMessage(`{"Evaluation":{"ID":"e","Namespace":"default","JobID":"j","Status":"pending","TriggeredBy":"job-deregister"}}`)},
		"job":        {Topic: "Job", Type: "JobDeregistered", Namespace: "default", Key: "j"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job := JobKey{"default", "j"}
			told := 0
			w := New(Config{World: NewWorld(), Log: hclog.NewNullLogger(), Hooks: Hooks{Removed: func(gone JobKey) {
				if gone == job {
					told++
				}
			}}})
			if err := w.apply(e, true); err != nil || told != 0 || len(w.departed.jobs) != 0 {
				t.Errorf("what is older than the list is no news: %d, %v", told, err)
			}
			if err := w.apply(e, false); err != nil || told != 1 || len(w.departed.jobs) != 1 {
				t.Errorf("want the job looked after, told %d, %d looked for, %v", told, len(w.departed.jobs), err)
			}
		})
	}
}

package submit

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/nomadapi"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/admission"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/ledger"
	"github.com/heteroflow/heteroflow/placement-service/watch"
)

// keeper is a Nomad that has one job.
type keeper struct {
	Registrar
	job        Tree
	registered []Tree
}

func (k *keeper) Job(context.Context, string, string) (nomadapi.Tree, error) { return k.job, nil }

func (k *keeper) Register(_ context.Context, _ string, request json.RawMessage) (nomadapi.Tree, error) {
	var env Tree
	if err := nomadapi.DecodeTree(request, &env); err != nil {
		return nil, err
	}
	k.registered = append(k.registered, env["Job"].(Tree))
	return Tree{"EvalID": "e"}, nil
}

// decidedFor is a job of one task with 20 GiB, with a decision for it on the node.
func decidedFor(t *testing.T, node string) (clean, job Tree, in admission.Injection) {
	t.Helper()
	err := nomadapi.DecodeTree([]byte(`{"ID":"x","Name":"x","Type":"batch","Datacenters":["dc1"],"TaskGroups":[{"Name":"g","Count":1,"Tasks":[{
		"Name":"t","Driver":"heteroflow","Config":{"command":"/bin/true","accelerator":[{"memory":"20GiB"}]},"Resources":{"CPU":10,"MemoryMB":10}}]}]}`), &clean)
	if err != nil {
		t.Fatal(err)
	}
	reading, problems := admission.Read(clean)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	cluster := engine.Snapshot{Nodes: []engine.Node{{
		ID: node, Name: node, Datacenter: "dc1", Ready: true, CPUMHz: 1000, MemoryMiB: 1000, Drivers: map[string]bool{admission.Driver: true},
		Pools: []engine.Pool{{
			Group: "nvidia/vgpu/A100-" + node, Vendor: accel.NVIDIA, Type: "vgpu", Name: "A100-" + node, Model: "A100", Form: accel.Shared, UnitMiB: 1024, Total: 80,
			Cards: []engine.Card{{UUID: "GPU-" + node, Healthy: true, Units: 80}},
		}},
	}}}
	d := engine.New(engine.Config{}).Decide(cluster, reading.Request)
	if !d.Placed {
		t.Fatal(d.Refusal)
	}
	job, in, err = admission.Inject(clean, reading, d, admission.Options{Key: ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))})
	if err != nil {
		t.Fatal(err)
	}
	return clean, job, in
}

// TestRetry_AfterACrash: a job that was on its way is sent again, unless Nomad has it under the very decision. Its
// spec alone does not tell: a job that is placed anew has the same spec on another node.
func TestRetry_AfterACrash(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		nomad string // node of the decision that Nomad has
		sends int
	}{
		"Nomad has it":                   {nomad: "new", sends: 0},
		"Nomad has it where it was lost": {nomad: "old", sends: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := db.Close(); err != nil {
					t.Error(err)
				}
			})
			_, has, _ := decidedFor(t, tc.nomad)
			nomad := &keeper{job: has}
			s := New(Config{
				Nomad: nomad, Store: db, World: watch.NewWorld(), Ledger: ledger.New(db), Clock: clock.NewFake(time.Now().Add(time.Hour)), Log: hclog.NewNullLogger(),
				Engine: func() *engine.Engine { return engine.New(engine.Config{}) },
			})
			t.Cleanup(s.Wait)
			clean, _, in := decidedFor(t, "new")
			if err := db.PutPools(t.Context(), "new", []store.Pool{{NodeID: "new", Group: "nvidia/vgpu/A100-new", Capacity: 80, UnitMiB: 1024}}); err != nil {
				t.Fatal(err)
			}
			err = db.Reserve(t.Context(), store.Reservation{
				ID: store.NewID(), Namespace: "default", JobID: "x", ExpiresAt: time.Now().Add(time.Hour),
				Claims: []store.Claim{{NodeID: "new", Group: "nvidia/vgpu/A100-new", Units: 20, TaskGroup: "g", Task: "t"}},
			})
			if err != nil {
				t.Fatal(err)
			}
			row := store.Job{Namespace: "default", ID: "x", State: store.JobSubmitting, Priority: 50}
			if row.SpecHash, err = admission.SpecHash(clean); err != nil {
				t.Fatal(err)
			}
			if row.Spec, err = json.Marshal(Tree{"Job": clean}); err != nil {
				t.Fatal(err)
			}
			if row.Injection, err = json.Marshal(in); err != nil {
				t.Fatal(err)
			}
			if _, err = db.PutJob(t.Context(), row); err != nil {
				t.Fatal(err)
			}
			done, err := s.Retry(t.Context(), watch.JobKey{Namespace: "default", ID: "x"})
			if err != nil || !done || len(nomad.registered) != tc.sends {
				t.Errorf("done %v, sent %d times, want %d: %v", done, len(nomad.registered), tc.sends, err)
			}
		})
	}
}

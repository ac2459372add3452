package state_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/embedded/state"
)

func open(t testing.TB, dir string) *state.Store {
	t.Helper()
	s, err := state.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func job(id string) *api.Job {
	j := api.NewServiceJob(id, id, "global", 50).AddTaskGroup(api.NewTaskGroup("g", 1).AddTask(api.NewTask("t", "d")))
	j.Canonicalize()
	return j
}

func update(t testing.TB, s *state.Store, f func(*state.Tx)) {
	t.Helper()
	if err := s.Update(func(tx *state.Tx) error { f(tx); return nil }); err != nil {
		t.Fatal(err)
	}
}

func alloc(id string, j *api.Job) *api.Allocation {
	return &api.Allocation{ID: id, Namespace: "default", JobID: *j.ID, Job: j, NodeID: "n", EvalID: "e", TaskGroup: "g", DesiredStatus: "run", ClientStatus: "pending"}
}

// picture is everything a reader sees, for comparison.
func picture(s *state.Store) map[string]any {
	out := map[string]any{}
	s.View(func(r state.Reader) {
		out["jobs"], out["evals"], out["allocs"] = r.Jobs("*"), r.Evals(), r.Allocs()
		out["nodes"], out["deployments"], out["services"], out["index"] = r.Nodes(), r.Deployments(), r.Services(), r.Index()
		for _, j := range r.Jobs("*") {
			out["versions of "+*j.ID] = r.Versions(*j.Namespace, *j.ID)
			out["scales of "+*j.ID] = r.ScaleEvents(*j.Namespace, *j.ID, "g")
		}
	})
	return out
}

func fill(t testing.TB, s *state.Store) {
	t.Helper()
	j := job("a/b")
	update(t, s, func(tx *state.Tx) {
		tx.RegisterJob(j)
		tx.PutSubmission(&state.Submission{Namespace: "default", JobID: "a/b", Submission: &api.JobSubmission{Source: "job {}"}})
		tx.PutEval(&api.Evaluation{ID: "e", Namespace: "default", JobID: "a/b", Status: "complete"})
		tx.PutNode(&api.Node{ID: "n", Name: "n"}, "NodeRegistration")
		tx.PutNode(&api.Node{ID: "sim", Attributes: map[string]string{state.SimulatedAttribute: "true"}}, "NodeRegistration")
		tx.PutScaleEvent(&state.ScaleEvent{Namespace: "default", JobID: "a/b", Group: "g"})
	})
	update(t, s, func(tx *state.Tx) {
		tx.PutAlloc(alloc("x", tx.Job("default", "a/b")), state.PlanResult)
		tx.PutDeployment(&api.Deployment{ID: "d", Namespace: "default", JobID: "a/b", Status: "running"})
		tx.PutService(&api.ServiceRegistration{ID: "s", ServiceName: "svc", Namespace: "default", AllocID: "x"})
	})
}

func TestStore_IsTheSameAfterAKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	fill(t, s)
	want := picture(s)
	// Not closed: a kill does not close either.
	again := open(t, dir)
	got := picture(again)
	if len(got["nodes"].([]*api.Node)) != 1 {
		t.Errorf("nodes after the restart are %v, want the real one only", got["nodes"])
	}
	delete(want, "nodes")
	delete(got, "nodes")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("state after the restart (-want +got):\n%s", diff)
	}
	again.View(func(r state.Reader) {
		if a := r.Alloc("x"); a.Job != r.Versions("default", "a/b")[0] && *a.Job.JobModifyIndex != *r.Job("default", "a/b").JobModifyIndex {
			t.Error("the allocation lost the version it runs")
		}
		if r.Submission("default", "a/b", 0) == nil {
			t.Error("the job's source is gone")
		}
		if r.TableIndex("jobs", "") < 2 {
			t.Error("table indexes went back")
		}
	})
}

func TestStore_ForgetsAnUnfinishedLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	fill(t, s)
	path := filepath.Join(dir, "state.log")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	update(t, s, func(tx *state.Tx) {
		tx.DeleteService(&api.ServiceRegistration{ID: "s", Namespace: "default", ServiceName: "svc"})
	})
	longer, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := len(whole); cut < len(longer); cut += 7 {
		other := t.TempDir()
		if err := os.WriteFile(filepath.Join(other, "state.log"), longer[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		half := open(t, other)
		half.View(func(r state.Reader) {
			if len(r.Services()) != 1 {
				t.Errorf("cut at %d of %d: the service is gone before its removal was whole", cut, len(longer))
			}
		})
		update(t, half, func(tx *state.Tx) { tx.PutEval(&api.Evaluation{ID: "later", Namespace: "default"}) })
		after := open(t, other)
		after.View(func(r state.Reader) {
			if r.Eval("later") == nil {
				t.Errorf("cut at %d: what was written afterwards is gone", cut)
			}
		})
	}
}

func TestStore_RefusesADamagedJournal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fill(t, open(t, dir))
	path := filepath.Join(dir, "state.log")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text[40] ^= 1
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := state.Open(dir, nil); err == nil {
		t.Error("a journal with a damaged line in the middle was taken")
	}
}

func TestStore_RewritesALongJournal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	fill(t, s)
	big := make([]byte, 1<<20)
	for i := range big {
		big[i] = 'x'
	}
	for i := range 24 {
		update(t, s, func(tx *state.Tx) {
			tx.PutEval(&api.Evaluation{ID: "big", Namespace: "default", StatusDescription: fmt.Sprintf("%d%s", i, big)})
		})
	}
	info, err := os.Stat(filepath.Join(dir, "state.log"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 16<<20 {
		t.Errorf("journal has %d MiB for 1 MiB of live rows", info.Size()>>20)
	}
	want, got := picture(s), picture(open(t, dir))
	delete(want, "nodes")
	delete(got, "nodes")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("state after a rewrite (-want +got):\n%s", diff)
	}
}

func TestStore_KeepsNothingOfAFailedTransaction(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	fill(t, s)
	want := picture(s)
	boom := errors.New("boom")
	err := s.Update(func(tx *state.Tx) error {
		tx.PutEval(&api.Evaluation{ID: "other", Namespace: "default"})
		if tx.Eval("other") == nil {
			t.Error("a transaction does not see its own change")
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Fatalf("got %v", err)
	}
	if diff := cmp.Diff(want, picture(s)); diff != "" {
		t.Errorf("state changed:\n%s", diff)
	}
}

func TestStore_JobStatusFollowsItsAllocations(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	status := func() (got string) {
		s.View(func(r state.Reader) { got = *r.Job("default", "a").Status })
		return got
	}
	j := job("a")
	update(t, s, func(tx *state.Tx) {
		tx.RegisterJob(j)
		tx.PutEval(&api.Evaluation{ID: "e", Namespace: "default", JobID: "a", Status: "pending"})
	})
	if status() != "pending" {
		t.Errorf("new job is %s", status())
	}
	update(t, s, func(tx *state.Tx) {
		tx.PutEval(&api.Evaluation{ID: "e", Namespace: "default", JobID: "a", Status: "complete"})
		tx.PutAlloc(alloc("x", tx.Job("default", "a")), state.PlanResult)
	})
	if status() != "running" {
		t.Errorf("job with an allocation is %s", status())
	}
	update(t, s, func(tx *state.Tx) {
		a := *tx.Alloc("x")
		a.ClientStatus = "complete"
		tx.PutAlloc(&a, state.ClientUpdate)
	})
	if status() != "dead" {
		t.Errorf("job with nothing left is %s", status())
	}
}

// TestStore_AgreesWithAPlainMap holds the tables, their indexes and the journal to a model under random changes.
func TestStore_AgreesWithAPlainMap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "state")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		s, err := state.Open(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		model := map[string]string{} // evaluation → job
		last := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				ids := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 1, 4).Draw(t, "ids")
				if err := s.Update(func(tx *state.Tx) error {
					for _, id := range ids {
						if rapid.Bool().Draw(t, "delete") {
							tx.DeleteEval(id)
							delete(model, id)
							continue
						}
						model[id] = rapid.SampledFrom([]string{"x", "y"}).Draw(t, "job")
						tx.PutEval(&api.Evaluation{ID: id, Namespace: "default", JobID: model[id]})
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			},
			"reopen": func(t *rapid.T) {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if s, err = state.Open(dir, nil); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				if s.Index() < last {
					t.Fatalf("index went from %d to %d", last, s.Index())
				}
				last = s.Index()
				s.View(func(r state.Reader) {
					byJob := map[string]int{}
					for id, job := range model {
						byJob[job]++
						if e := r.Eval(id); e == nil || e.JobID != job {
							t.Fatalf("evaluation %s is %v, want of job %s", id, e, job)
						}
					}
					for _, job := range []string{"x", "y"} {
						if got := len(r.EvalsByJob("default", job)); got != byJob[job] {
							t.Fatalf("job %s has %d evaluations, want %d", job, got, byJob[job])
						}
					}
					if len(r.Evals()) != len(model) {
						t.Fatalf("%d evaluations, want %d", len(r.Evals()), len(model))
					}
				})
			},
		})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestBuffer_ResumesAndDrops(t *testing.T) {
	t.Parallel()
	b := state.NewBuffer(3)
	for i := uint64(10); i < 20; i++ {
		b.Append(i, []state.Event{{Index: i}})
	}
	ctx := context.Background()
	next := func(c *state.Cursor) uint64 {
		batch, err := c.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return batch.Index
	}
	if got := next(b.From(0)); got != 17 {
		t.Errorf("from 0 starts at %d, want at the oldest kept, 17", got)
	}
	c := b.From(18)
	if got := next(c); got != 18 {
		t.Errorf("from 18 starts at %d", got)
	}
	for i := uint64(20); i < 30; i++ {
		b.Append(i, []state.Event{{Index: i}})
	}
	if got := next(c); got != 27 {
		t.Errorf("a slow reader goes on at %d, want at the oldest kept, 27", got)
	}
	late := b.From(99)
	done := make(chan uint64)
	go func() { done <- next(late) }()
	b.Append(99, nil)
	if got := <-done; got != 99 {
		t.Errorf("a waiting reader got %d", got)
	}
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if _, err := late.Next(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an idle reader got %v", err)
	}
}

// FuzzOpen holds reading a journal to an error or a store, never a crash.
func FuzzOpen(f *testing.F) {
	dir := f.TempDir()
	fill(f, open(f, dir))
	text, err := os.ReadFile(filepath.Join(dir, "state.log"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte("00000000 {}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "state.log"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := state.Open(dir, nil)
		if err != nil {
			return
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

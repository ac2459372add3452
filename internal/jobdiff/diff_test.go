package jobdiff

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/jobspec"
)

func job(t *testing.T, file string) *api.Job {
	t.Helper()
	src, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	job, err := jobspec.Parse(file, src, nil)
	if err != nil {
		t.Fatal(err)
	}
	job.Canonicalize()
	return job
}

// lines writes a difference as text, one line for each part, sorted: order is presentation.
func lines(diff *api.JobDiff) (out []string) {
	var objects func(path string, list []*api.ObjectDiff)
	fields := func(path string, list []*api.FieldDiff) {
		for _, f := range list {
			out = append(out, path+" | "+f.Type+" "+f.Name+": "+f.Old+" => "+f.New+" "+strings.Join(f.Annotations, ","))
		}
	}
	objects = func(path string, list []*api.ObjectDiff) {
		for _, o := range list {
			here := path + " | " + o.Type + " " + o.Name
			out = append(out, here)
			fields(here, o.Fields)
			objects(here, o.Objects)
		}
	}
	out = append(out, diff.Type+" "+diff.ID)
	fields("job", diff.Fields)
	objects("job", diff.Objects)
	for _, g := range diff.TaskGroups {
		group := "group " + g.Name
		out = append(out, group+" "+g.Type)
		fields(group, g.Fields)
		objects(group, g.Objects)
		for _, task := range g.Tasks {
			here := group + " task " + task.Name
			out = append(out, here+" "+task.Type+" "+strings.Join(task.Annotations, ","))
			fields(here, task.Fields)
			objects(here, task.Objects)
		}
	}
	slices.Sort(out)
	return out
}

// ofServer tells what a real server adds to a job beside the API's defaults: identities, and values of its own
// structs that the API has no member for or canonicalizes otherwise.
func ofServer(line string) bool {
	for _, part := range []string{
		"Identity", " Namespace:", "PreventRescheduleOnLost", "RenderTemplates", "DiskMB", "IOPS", "MemoryMaxMB", "SecretsMB", "HostNetwork", "Advertise",
		"Check | None Name:",
	} {
		if strings.Contains(line, part) {
			return true
		}
	}
	// Nomad leaves these two out of its answer. Shown, they tell the user of a change he made.
	return strings.Contains(line, "Device | Added Constraint") || strings.Contains(line, " task ") && strings.Contains(line, "RestartPolicy")
}

func TestDiff_AsNomadPlans(t *testing.T) {
	t.Parallel()
	recorded, err := os.ReadFile("testdata/plan.json")
	if err != nil {
		t.Fatal(err)
	}
	var want api.JobDiff
	if err := json.Unmarshal(recorded, &want); err != nil {
		t.Fatal(err)
	}
	got := Diff(job(t, "before.nomad.hcl"), job(t, "after.nomad.hcl"))
	Annotate(got, map[string]*api.DesiredUpdates{
		"g": {Ignore: 1, Place: 2}, "new": {Place: 1}, "old": {Stop: 1},
	})
	drop := func(all []string) []string { return slices.DeleteFunc(all, ofServer) }
	if diff := cmp.Diff(drop(lines(&want)), drop(lines(got))); diff != "" {
		t.Errorf("(-nomad +ours):\n%s", diff)
	}
}

// TestDiff_ObjectsInNomadsOrder compares the order of what both show: a plan is read from top to bottom.
func TestDiff_ObjectsInNomadsOrder(t *testing.T) {
	t.Parallel()
	recorded, err := os.ReadFile("testdata/plan.json")
	if err != nil {
		t.Fatal(err)
	}
	var want api.JobDiff
	if err := json.Unmarshal(recorded, &want); err != nil {
		t.Fatal(err)
	}
	order := func(diff *api.JobDiff) map[string][]string {
		out := map[string][]string{}
		for _, g := range diff.TaskGroups {
			out[g.Name] = names(g.Objects)
			for _, task := range g.Tasks {
				out[g.Name+"/"+task.Name] = names(task.Objects)
			}
		}
		return out
	}
	got := order(Diff(job(t, "before.nomad.hcl"), job(t, "after.nomad.hcl")))
	for place, theirs := range order(&want) {
		both := func(in []string) func(string) bool {
			return func(name string) bool { return !slices.Contains(in, name) }
		}
		ours := got[place]
		wanted := slices.DeleteFunc(slices.Clone(theirs), both(ours))
		if diff := cmp.Diff(wanted, slices.DeleteFunc(slices.Clone(ours), both(theirs))); diff != "" {
			t.Errorf("%s (-nomad +ours):\n%s", place, diff)
		}
	}
}

// names are the names of objects, each once.
func names(objects []*api.ObjectDiff) (out []string) {
	for _, o := range objects {
		if !slices.Contains(out, o.Name) {
			out = append(out, o.Name)
		}
	}
	return out
}

func TestDiff_SameJobIsNone(t *testing.T) {
	t.Parallel()
	got := Diff(job(t, "before.nomad.hcl"), job(t, "before.nomad.hcl"))
	want := []string{"None d", "group g None", "group g task t None ", "group g task u None ", "group old None", "group old task x None "}
	if diff := cmp.Diff(want, lines(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDiff_OneSideMissing(t *testing.T) {
	t.Parallel()
	j := job(t, "before.nomad.hcl")
	if got := Diff(nil, j).Type; got != Added {
		t.Errorf("new job is %s", got)
	}
	if got := Diff(j, nil).Type; got != Deleted {
		t.Errorf("gone job is %s", got)
	}
	if got := Diff(nil, nil).Type; got != None {
		t.Errorf("no job is %s", got)
	}
}

func TestAnnotate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		updates    api.DesiredUpdates
		want       string
		wantCounts map[string]uint64
	}{
		"in place":    {api.DesiredUpdates{InPlaceUpdate: 2}, forcesInPlace, map[string]uint64{"in-place update": 2}},
		"destructive": {api.DesiredUpdates{DestructiveUpdate: 1, Ignore: 1}, forcesDestructive, map[string]uint64{"create/destroy update": 1, "ignore": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			diff := &api.JobDiff{TaskGroups: []*api.TaskGroupDiff{{
				Name: "g", Type: Edited, Fields: []*api.FieldDiff{{Name: "Count", Type: Edited, Old: "3", New: "1"}},
				Tasks: []*api.TaskDiff{{Name: "t", Type: Edited}, {Name: "same", Type: None}},
			}}}
			Annotate(diff, map[string]*api.DesiredUpdates{"g": &c.updates})
			group := diff.TaskGroups[0]
			if got := group.Tasks[0].Annotations; len(got) != 1 || got[0] != c.want {
				t.Errorf("annotations = %v, want %s", got, c.want)
			}
			if got := group.Tasks[1].Annotations; got != nil {
				t.Errorf("annotations of a task without change = %v", got)
			}
			if got := group.Fields[0].Annotations; len(got) != 1 || got[0] != forcesDestroy {
				t.Errorf("annotations of the count = %v", got)
			}
			if diff := cmp.Diff(c.wantCounts, group.Updates); diff != "" {
				t.Errorf("updates (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDiff_Properties: a job never differs from itself, and the way back swaps what was added and deleted.
func TestDiff_Properties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom([]string{"", "a", "b"})
		draw := func(label string) *api.Job {
			id := "j"
			job := &api.Job{ID: &id, Datacenters: rapid.SliceOfN(text, 0, 3).Draw(t, label+" datacenters")}
			for range rapid.IntRange(0, 3).Draw(t, label+" groups") {
				name := text.Draw(t, label+" group")
				job.TaskGroups = append(job.TaskGroups, &api.TaskGroup{
					Name: &name, Meta: rapid.MapOfN(text, text, 0, 2).Draw(t, label+" meta"),
					Tasks: []*api.Task{{
						Name: text.Draw(t, label+" task"), Config: map[string]any{"args": []any{text.Draw(t, label+" arg")}},
						Services: []*api.Service{{Name: text.Draw(t, label+" service"), PortLabel: text.Draw(t, label+" port")}},
					}},
				})
			}
			return job
		}
		before, after := draw("before"), draw("after")
		if got := Diff(before, before); got.Type != None {
			t.Fatalf("a job differs from itself: %v", lines(got))
		}
		there, back := Diff(before, after), Diff(after, before)
		swap := strings.NewReplacer(Added, "#", Deleted, Added)
		if count(there, Added) != count(back, Deleted) || count(there, Deleted) != count(back, Added) {
			t.Fatalf("there %v\nback %v", lines(there), swap.Replace(strings.Join(lines(back), "\n")))
		}
	})
}

func count(diff *api.JobDiff, kind string) (n int) {
	for _, line := range lines(diff) {
		if strings.Contains(line, kind) {
			n++
		}
	}
	return n
}

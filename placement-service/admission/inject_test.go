package admission

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var testKey = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))

// testCluster is two nodes with two shared 80 GiB cards each, and one with four whole ones.
func testCluster() engine.Snapshot {
	var s engine.Snapshot
	for n := range 3 {
		node := engine.Node{
			ID: fmt.Sprintf("0000000%d-aaaa-bbbb-cccc-000000000000", n), Name: fmt.Sprintf("node%d", n), Datacenter: "dc1", Ready: true,
			CPUMHz: 32000, MemoryMiB: 65536, Drivers: map[string]bool{Driver: true, "docker": true},
		}
		if n == 2 {
			node.Pools = []engine.Pool{{
				Group: "nvidia/gpu/H100-SXM5-80GB", Vendor: accel.NVIDIA, Type: "gpu", Name: "H100-SXM5-80GB", Model: "H100-SXM5-80GB",
				Form: accel.Whole, UnitMiB: 81920, Total: 4,
			}}
		}
		for c := 0; c < 2 && n < 2; c++ {
			uuid := fmt.Sprintf("GPU-%d%d", n, c)
			name := "A100-SXM4-80GB-" + accel.ShortID(accel.NVIDIA, uuid)
			node.Pools = append(node.Pools, engine.Pool{
				Group: "nvidia/vgpu/" + name, Vendor: accel.NVIDIA, Type: "vgpu", Name: name, Model: "A100-SXM4-80GB", Form: accel.Shared,
				UnitMiB: 1024, Total: 80, Modes: []string{"mps"}, Cards: []engine.Card{{UUID: uuid, Healthy: true, Units: 80}},
			})
		}
		s.Nodes = append(s.Nodes, node)
	}
	return s
}

func read(t *testing.T, job Tree) Reading {
	t.Helper()
	r, problems := Read(job)
	if len(problems) > 0 {
		t.Fatalf("problems: %v", problems)
	}
	return r
}

// admit is the way of a job through the service: read, decide, write.
func admit(t *testing.T, job Tree) (Tree, Injection) {
	t.Helper()
	r := read(t, job)
	d := engine.New(engine.Config{}).Decide(testCluster(), r.Request)
	if !d.Placed {
		t.Fatalf("not placed: %s", d.Refusal.Sentence)
	}
	out, in, err := Inject(Strip(job), r, d, Options{Tenant: "research", Key: testKey})
	if err != nil {
		t.Fatal(err)
	}
	return out, in
}

// TestInject_Golden holds the whole job that goes to Nomad against testdata/golden/<name>/out.json.
func TestInject_Golden(t *testing.T) {
	t.Parallel()
	inputs, err := filepath.Glob("testdata/golden/*/job.json")
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no jobs: %v", err)
	}
	for _, input := range inputs {
		dir := filepath.Dir(input)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			job := load(t, input)
			before := jsonOf(t, job)
			out, in := admit(t, job)
			golden(t, filepath.Join(dir, "out.json"), jsonOf(t, out))
			golden(t, filepath.Join(dir, "injection.json"), jsonOf(t, in))
			if before != jsonOf(t, job) {
				t.Error("the input was changed")
			}
			checkRepeats(t, job, out, in)
		})
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got)\n%s", file, diff)
	}
}

// checkRepeats holds that a job can pass any number of times and stays as it is.
func checkRepeats(t *testing.T, job, out Tree, in Injection) {
	t.Helper()
	if diff := cmp.Diff(compact(job), compact(Strip(out))); diff != "" {
		t.Errorf("stripped job differs from the user's\n%s", diff)
	}
	if hashOf(t, job) != hashOf(t, out) {
		t.Error("the injected job has another hash")
	}
	var stored Injection
	if err := json.Unmarshal([]byte(jsonOf(t, in)), &stored); err != nil {
		t.Fatal(err)
	}
	for name, again := range map[string]Tree{"the user's job": job, "the injected job": out} {
		applied, stale := Apply(again, read(t, again), stored)
		if len(stale) > 0 || cmp.Diff(jsonOf(t, out), jsonOf(t, applied)) != "" {
			t.Errorf("%s applied again: stale %v\n%s", name, stale, cmp.Diff(jsonOf(t, out), jsonOf(t, applied)))
		}
	}
}

const oneShare = `{"ID":"llm","Datacenters":["dc1"],"TaskGroups":[{"Name":"serve","Count":%d,"Tasks":[
	{"Name":"vllm","Driver":"heteroflow","Config":{"image":"%s","accelerator":[{"memory":"%s"}]}}]}]}`

func TestApply(t *testing.T) {
	t.Parallel()
	job := parse(t, fmt.Sprintf(oneShare, 2, "x", "20GiB"))
	_, in := admit(t, job)
	cases := map[string]struct {
		job       Tree
		wantStale bool
	}{
		"same":                {job, false},
		"another image":       {parse(t, fmt.Sprintf(oneShare, 2, "y", "20GiB")), false},
		"fewer allocations":   {parse(t, fmt.Sprintf(oneShare, 1, "x", "20GiB")), false},
		"more allocations":    {parse(t, fmt.Sprintf(oneShare, 3, "x", "20GiB")), true},
		"more memory":         {parse(t, fmt.Sprintf(oneShare, 2, "x", "21GiB")), true},
		"same size otherwise": {parse(t, fmt.Sprintf(oneShare, 2, "x", "20480MiB")), false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, stale := Apply(c.job, read(t, c.job), in)
			if (len(stale) > 0) != c.wantStale {
				t.Fatalf("stale %v, want %v", stale, c.wantStale)
			}
			if injected := strings.Contains(jsonOf(t, out), mark+","); injected == c.wantStale {
				t.Errorf("injected: %v", injected)
			}
		})
	}
}

func TestShrink(t *testing.T) {
	t.Parallel()
	_, in := admit(t, parse(t, fmt.Sprintf(oneShare, 3, "x", "20GiB")))
	fewer := read(t, parse(t, fmt.Sprintf(oneShare, 1, "x", "20GiB")))
	small := Shrink(fewer, in)
	if small.Groups[0].Count != 1 || in.Groups[0].Count != 3 {
		t.Fatalf("counts %d and %d, want 1 and 3 as before", small.Groups[0].Count, in.Groups[0].Count)
	}
	again := parse(t, fmt.Sprintf(oneShare, 3, "x", "20GiB"))
	if _, stale := Apply(again, read(t, again), small); len(stale) != 1 {
		t.Error("room that was given back is taken for granted")
	}
}

// TestInject_CountKeepsBlocks scales a job up: the device blocks and the grant stay, so that nothing restarts.
func TestInject_CountKeepsBlocks(t *testing.T) {
	t.Parallel()
	job := parse(t, fmt.Sprintf(oneShare, 2, "x", "20GiB"))
	before, older := admit(t, job)
	grown := parse(t, fmt.Sprintf(oneShare, 4, "x", "20GiB"))
	r := read(t, grown)
	r.Request.Groups[0].Keep = &older.Groups[0].Plan
	d := engine.New(engine.Config{}).Decide(testCluster(), r.Request)
	if !d.Placed {
		t.Fatal(d.Refusal.Sentence)
	}
	after, newer, err := Inject(grown, r, d, Options{Tenant: "research", Key: testKey})
	if err != nil {
		t.Fatal(err)
	}
	set(objects(after, "TaskGroups")[0], "Count", json.Number("2"))
	if diff := cmp.Diff(jsonOf(t, before), jsonOf(t, after)); diff != "" {
		t.Errorf("more than the count changed\n%s", diff)
	}
	merged := Merge(r, older, newer)
	if len(merged.Groups) != 1 || merged.Groups[0].Count != 4 {
		t.Errorf("merged injection: %+v", merged)
	}
}

func TestInject_Grant(t *testing.T) {
	t.Parallel()
	out, _ := admit(t, parse(t, fmt.Sprintf(oneShare, 1, "x", "20GiB")))
	task := objects(objects(out, "TaskGroups")[0], "Tasks")[0]
	g, err := grant.Parse(getMap(task, "Config")["grant"].(string), testKey.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	want := grant.Grant{
		ID: g.ID, Tenant: "research", Namespace: "default", Job: "llm", Group: "serve", Task: "vllm", Count: 1, MemoryMiB: 20480, QoS: accel.Silver,
	}
	if diff := cmp.Diff(want, g); diff != "" || g.ID == "" {
		t.Errorf("grant (-want +got)\n%s", diff)
	}
}

func TestTenantOf(t *testing.T) {
	t.Parallel()
	out, _ := admit(t, parse(t, fmt.Sprintf(oneShare, 1, "x", "20GiB")))
	if got := TenantOf(out, testKey); got != "research" {
		t.Errorf("tenant %q", got)
	}
	other, err := grant.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if got := TenantOf(out, other); got != "" {
		t.Errorf("tenant %q by another key", got)
	}
	set(out, "ID", "copy")
	if got := TenantOf(out, testKey); got != "" {
		t.Errorf("tenant %q of a job with a copied grant", got)
	}
	if got := TenantOf(Tree{"ID": "plain"}, testKey); got != "" {
		t.Errorf("tenant %q of a job without a grant", got)
	}
}

// Only a job of which Nomad makes others has a grant for those: the name of any job may look like a child's.
func TestSign_Children(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]grant.Children{"": "", "system": "", "sysbatch": "", "periodic": grant.Periodic, "parameterized": grant.Dispatched} {
		token, err := sign(Reading{Request: engine.Request{JobID: "llm", Loose: kind}}, "g", engine.TaskShape{Task: "t", Ask: accel.Ask{Count: 1}}, Options{Key: testKey})
		if err != nil {
			t.Fatal(err)
		}
		g, err := grant.Parse(token, testKey.Public().(ed25519.PublicKey))
		if err != nil || g.Children != want {
			t.Errorf("%q: children = %q, %v; want %q", kind, g.Children, err, want)
		}
	}
}

// The grant says the size that is made, and another size is another grant.
func TestSign_RoundedSize(t *testing.T) {
	t.Parallel()
	ids := map[string]bool{}
	for name, tc := range map[string]struct {
		mib  uint64
		by   accel.Mode
		want uint64
	}{
		"as asked":        {0, "", 5000},
		"rounded":         {8192, accel.ModeVNPU, 8192},
		"the next larger": {16384, accel.ModeVNPU, 16384},
		"a MIG profile":   {9984, accel.ModeMIG, 5000}, // the driver takes the profile by what was asked
	} {
		shape := engine.TaskShape{Task: "t", Ask: accel.Ask{Count: 1, MemoryMiB: 5000}, RoundedMiB: tc.mib, RoundedBy: tc.by}
		token, err := sign(Reading{}, "g", shape, Options{Key: testKey})
		if err != nil {
			t.Fatal(err)
		}
		g, err := grant.Parse(token, testKey.Public().(ed25519.PublicKey))
		if err != nil || g.MemoryMiB != tc.want {
			t.Errorf("%s: %d MiB are granted, want %d; %v", name, g.MemoryMiB, tc.want, err)
		}
		ids[g.ID] = true
	}
	if len(ids) != 3 {
		t.Errorf("%d ids for grants of 3 sizes", len(ids))
	}
}

func TestStrip_ForeignGrant(t *testing.T) {
	t.Parallel()
	job := parse(t, `{"ID":"j","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Driver":"heteroflow","Config":{"image":"x","grant":"hfg1.stolen"}},
		{"Name":"u","Driver":"docker","Config":{"grant":"mine"}}]}]}`)
	tasks := objects(objects(Strip(job), "TaskGroups")[0], "Tasks")
	if _, there := getMap(tasks[0], "Config")["grant"]; there {
		t.Error("a grant of the user's stays in our driver's config")
	}
	if getMap(tasks[1], "Config")["grant"] != "mine" {
		t.Error("another driver's config was changed")
	}
}

func TestStrip_LeavesUsersConstraints(t *testing.T) {
	t.Parallel()
	job := parse(t, `{"ID":"j","TaskGroups":[{"Name":"g","Constraints":[{"LTarget":"${node.unique.id}","RTarget":"a,b","Operand":"set_contains_any"}],
		"Tasks":[{"Name":"t","Driver":"docker","Resources":{"Devices":[{"Name":"nvidia/gpu","Count":1,"Constraints":null}]}}]}]}`)
	if diff := cmp.Diff(job, Strip(job)); diff != "" {
		t.Errorf("changed\n%s", diff)
	}
}

// TestApply_ReadBack feeds what Nomad gives back for an injected job into the service again: it is the same job, and
// nothing is there twice.
func TestApply_ReadBack(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/golden/*/nomad-*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no captures: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimPrefix(file, "testdata/golden/"), func(t *testing.T) {
			t.Parallel()
			dir := filepath.Dir(file)
			job, back := load(t, filepath.Join(dir, "job.json")), load(t, file)
			_, in := admit(t, job)
			if hashOf(t, job) != hashOf(t, back) {
				t.Errorf("another hash\n%s", cmp.Diff(settled(t, job), settled(t, back)))
			}
			out, stale := Apply(back, read(t, back), in)
			if len(stale) > 0 {
				t.Errorf("stale %v\n%s", stale, cmp.Diff(read(t, job).Request, read(t, back).Request))
			}
			if diff := cmp.Diff(compact(back), compact(out)); diff != "" {
				t.Errorf("applied again (-read back +applied)\n%s", diff)
			}
		})
	}
}

// TestInjected_TellsDecisionsApart: and takes no notice of the user's own part of the job.
func TestInjected_TellsDecisionsApart(t *testing.T) {
	t.Parallel()
	job := parse(t, `{"ID":"x","TaskGroups":[{"Name":"g","Count":1,
		"Tasks":[{"Name":"t","Driver":"heteroflow","Config":{"image":"a","accelerator":[{"memory":"20GiB"}]}}]}]}`)
	out, in := admit(t, job)
	name := Injected(out)
	if name == Injected(job) {
		t.Error("a job with an injection has the name of one without")
	}
	for what, change := range map[string]func(*GroupInjection){
		"nodes": func(g *GroupInjection) { g.Plan.Nodes = []string{"another"} },
		"grant": func(g *GroupInjection) { g.Grants = []TaskGrant{{Task: "t", Token: "another"}} },
		"device": func(g *GroupInjection) {
			g.Plan.Tasks = []engine.TaskShape{{Task: "t", Blocks: []engine.Block{{Device: "nvidia/vgpu", Count: 21}}}}
		},
	} {
		other := in
		other.Groups = []GroupInjection{in.Groups[0]}
		change(&other.Groups[0])
		if changed, _ := Apply(job, read(t, job), other); Injected(changed) == name {
			t.Errorf("another decision by its %s has the same name", what)
		}
	}
	own := cloneTree(out)
	objects(own, "TaskGroups")[0]["Constraints"] = append(getList(objects(own, "TaskGroups")[0], "Constraints"), map[string]any{"LTarget": "${node.class}", "RTarget": "a", "Operand": "="})
	own["Meta"] = map[string]any{"a": "b"}
	if Injected(own) != name {
		t.Error("what the user adds changes the name")
	}
}

package admission

import (
	"crypto/ed25519"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/placement-service/engine"
	"github.com/heteroflow/heteroflow/placement-service/engine/collective"
	"github.com/heteroflow/heteroflow/placement-service/engine/gang"
)

// gangGroup is a group of a gang with a master port.
func gangGroup(name string, count int, block string) string {
	return fmt.Sprintf(`{"Name":%q,"Count":%d,"Networks":[{"DynamicPorts":[{"Label":"master"}]}],"Tasks":[
		{"Name":"main","Driver":"heteroflow","Config":{"accelerator":[{"count":8}],"gang":%s}}]}`, name, count, block)
}

func gangJob(kind string, groups ...string) string {
	return fmt.Sprintf(`{"ID":"train","Type":%q,"TaskGroups":[%s]}`, kind, strings.Join(groups, ","))
}

func TestRead_Gang(t *testing.T) {
	t.Parallel()
	r := read(t, parse(t, gangJob("batch",
		gangGroup("workers", 4, `[{"framework":"deepspeed","level":"rack","mode":"required","start_timeout":"90s","on_lost":"restart_member"}]`))))
	want := &Gang{Level: "rack", Mode: gang.Required, Framework: collective.DeepSpeed, StartTimeout: 90 * time.Second, OnLost: grant.RestartMember}
	if diff := cmp.Diff(want, r.Gang); diff != "" || r.Members != 4 {
		t.Errorf("%d members (-want +got)\n%s", r.Members, diff)
	}
	if diff := cmp.Diff(&engine.GangAsk{Level: "rack", Mode: gang.Required}, r.Request.Gang); diff != "" || !r.Request.Groups[0].Gang {
		t.Errorf("request (-want +got)\n%s", diff)
	}
	r = read(t, parse(t, gangJob("batch", gangGroup("workers", 2, `[{}]`))))
	want = &Gang{Framework: collective.DDP, StartTimeout: 10 * time.Minute, OnLost: grant.RestartGang}
	if diff := cmp.Diff(want, r.Gang); diff != "" {
		t.Errorf("defaults (-want +got)\n%s", diff)
	}
	if r = read(t, parse(t, jobWith(`[{}]`))); r.Gang != nil || r.Request.Gang != nil {
		t.Errorf("a job without the block is a gang: %+v", r.Gang)
	}
}

func TestRead_GangProblems(t *testing.T) {
	t.Parallel()
	const at = "TaskGroups[0].Tasks[0].Config.gang"
	noPort := strings.Replace(gangGroup("g", 1, `[{}]`), "master", "http", 1)
	noCard := strings.Replace(gangGroup("g", 1, `[{}]`), `"accelerator":[{"count":8}],`, "", 1)
	service := gangJob("service", gangGroup("g", 2, `[{}]`))
	for name, tc := range map[string]struct{ job, path, text string }{
		"fewest beyond all":        {gangJob("batch", gangGroup("g", 2, `[{"min":3}]`)), at + "[0].min", "at least 3 of 2 members"},
		"a negative fewest":        {gangJob("batch", gangGroup("g", 2, `[{"min":-1}]`)), at + "[0].min", "-1 is negative"},
		"fewest of two groups":     {gangJob("batch", gangGroup("g", 2, `[{"min":1}]`), gangGroup("h", 2, `[{"min":1}]`)), at + "[0].min", "has 2 groups"},
		"fewest, and it fails":     {gangJob("batch", gangGroup("g", 2, `[{"min":1,"on_lost":"fail"}]`)), at + "[0].on_lost", "restart_member"},
		"an unknown framework":     {gangJob("batch", gangGroup("g", 1, `[{"framework":"jax"}]`)), at + "[0].framework", "write one of ddp, fsdp, deepspeed, mpi"},
		"an unknown level":         {gangJob("batch", gangGroup("g", 1, `[{"level":"row"}]`)), at + "[0].level", "write one of zone, rack, switch, node, part"},
		"a mode without a level":   {gangJob("batch", gangGroup("g", 1, `[{"mode":"required"}]`)), at + "[0].mode", `write level = "rack"`},
		"an unknown mode":          {gangJob("batch", gangGroup("g", 1, `[{"level":"rack","mode":"near"}]`)), at + "[0].mode", "preferred, required, balanced"},
		"no time":                  {gangJob("batch", gangGroup("g", 1, `[{"start_timeout":"soon"}]`)), at + "[0].start_timeout", `start_timeout = "10m"`},
		"an unknown policy":        {gangJob("batch", gangGroup("g", 1, `[{"on_lost":"cry"}]`)), at + "[0].on_lost", "restart_gang, restart_member, fail"},
		"an unknown field":         {gangJob("batch", gangGroup("g", 1, `[{"size":4}]`)), at + "[0].size", "it has framework, level, min, mode"},
		"not a block":              {gangJob("batch", gangGroup("g", 1, `"ddp"`)), at, `gang { framework = "ddp" }`},
		"two blocks":               {gangJob("batch", gangGroup("g", 1, `[{},{}]`)), at, "one gang block"},
		"no port to meet at":       {gangJob("batch", noPort), at + "[0]", `network { port "master" {} }`},
		"no card":                  {gangJob("batch", noCard), at + "[0]", "write an accelerator block"},
		"a system job":             {gangJob("system", gangGroup("g", 1, `[{}]`)), at + "[0]", "type batch or service"},
		"different in two groups":  {gangJob("batch", gangGroup("g", 1, `[{}]`), gangGroup("h", 1, `[{"level":"rack"}]`)), "TaskGroups[1].Tasks[0].Config.gang[0]", `differs from the gang block of group "g"`},
		"a service, one at a time": {service, at + "[0]", "update { max_parallel = 0 }"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, problems := Read(parse(t, tc.job))
			if !slices.ContainsFunc(problems, func(p Problem) bool { return p.Path == tc.path && strings.Contains(p.Text, tc.text) }) {
				t.Errorf("want %s: %s, got\n%v", tc.path, tc.text, problems)
			}
		})
	}
	at1 := strings.Replace(service, `"Count":2`, `"Update":{"MaxParallel":0},"Count":2`, 1)
	if _, problems := Read(parse(t, at1)); len(problems) > 0 {
		t.Errorf("a service that is updated at once: %v", problems)
	}
}

// More members, or another framework, are another gang: all of its groups are decided anew, together.
func TestRead_GangHashes(t *testing.T) {
	t.Parallel()
	hashes := func(groups ...string) map[string]string { return read(t, parse(t, gangJob("batch", groups...))).Hashes }
	base := hashes(gangGroup("g", 1, `[{}]`), gangGroup("h", 2, `[{}]`))
	for name, other := range map[string]map[string]string{
		"one more member":   hashes(gangGroup("g", 1, `[{}]`), gangGroup("h", 3, `[{}]`)),
		"another framework": hashes(gangGroup("g", 1, `[{"framework":"mpi"}]`), gangGroup("h", 2, `[{"framework":"mpi"}]`)),
	} {
		if base["g"] == other["g"] || base["h"] == other["h"] {
			t.Errorf("%s changes not all groups: %v, %v", name, base, other)
		}
	}
	r := read(t, parse(t, gangJob("batch", gangGroup("g", 1, `[{}]`), gangGroup("h", 2, `[{}]`))))
	if got := r.Together([]string{"h"}); !slices.Equal(got, []string{"g", "h"}) {
		t.Errorf("decided together: %v", got)
	}
	if got := r.Together(nil); got != nil {
		t.Errorf("nothing is stale: %v", got)
	}
}

// The grant of a member says of which gang it is, and the injection keeps the order of ranks.
func TestInject_Gang(t *testing.T) {
	t.Parallel()
	key, err := grant.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	job := parse(t, gangJob("batch", gangGroup("workers", 2, `[{"framework":"mpi"}]`)))
	r := read(t, job)
	ask := *r.Request.Groups[0].Tasks[0].Ask
	d := engine.Decision{
		Placed: true, Gang: []engine.Member{{Group: "workers", NodeID: "n2"}, {Group: "workers", NodeID: "n1"}},
		Groups: []engine.GroupPlan{{Name: "workers", Nodes: []string{"n1", "n2"}, Tasks: []engine.TaskShape{{
			Task: "main", Ask: ask, Blocks: []engine.Block{{Device: "nvidia/gpu/H100", Count: 8, Allow: []engine.Allow{{Attribute: "${device.model}", Values: []string{"H100"}}}}},
		}}}},
	}
	_, in, err := Inject(job, r, d, Options{Tenant: "t", Key: key})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d.Gang, in.Gang); diff != "" {
		t.Errorf("order of ranks (-want +got)\n%s", diff)
	}
	g, err := grant.Parse(in.Groups[0].Grants[0].Token, key.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&grant.Gang{Members: 2, Framework: "mpi", StartSeconds: 600, OnLost: grant.RestartGang}, g.Gang); diff != "" {
		t.Errorf("grant (-want +got)\n%s", diff)
	}
	if merged := Merge(r, in, Injection{Version: in.Version}); len(merged.Gang) != 2 {
		t.Errorf("a decision about other groups loses the order: %+v", merged.Gang)
	}
}

// An elastic gang runs with as many as were placed, and its user's count is known of the job again.
func TestInject_ElasticGang(t *testing.T) {
	t.Parallel()
	job := parse(t, gangJob("batch", gangGroup("workers", 8, `[{"min":2}]`)))
	r := read(t, job)
	if r.Request.Gang.Min != 2 || r.grantOf("workers").Min != 2 || r.grantOf("workers").Members != 8 {
		t.Fatalf("read as %+v, granted as %+v", r.Request.Gang, r.grantOf("workers"))
	}
	place := engine.Placement{NodeID: "n1", Tasks: []engine.TaskPlacement{{Task: "main", Claims: []engine.Claim{{Group: "nvidia/gpu/H100", Units: 8}}}}}
	d := engine.Decision{Placed: true, Gang: []engine.Member{{Group: "workers", NodeID: "n1"}, {Group: "workers", NodeID: "n2"}, {Group: "workers", NodeID: "n3"}}, Groups: []engine.GroupPlan{{
		Name: "workers", Nodes: []string{"n1", "n2", "n3"}, Placements: []engine.Placement{place, place, place},
		Tasks: []engine.TaskShape{{Task: "main", Ask: *r.Request.Groups[0].Tasks[0].Ask, Blocks: []engine.Block{{Device: "nvidia/gpu/H100", Count: 8, Allow: []engine.Allow{{Attribute: "${device.model}", Values: []string{"H100"}}}}}}},
	}}}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	out, in, err := Inject(Strip(job), r, d, Options{Key: key})
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := integer(out["TaskGroups"].([]any)[0].(Tree)["Count"]); n != 3 || in.Groups[0].Count != 3 || in.Groups[0].Most != 8 {
		t.Errorf("%d run, noted as %+v", n, in.Groups[0])
	}
	same := func(a, b Tree) bool {
		x, err1 := SpecHash(a)
		y, err2 := SpecHash(b)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		return x == y
	}
	if !same(out, job) {
		t.Error("the job is another one for its user")
	}
	if again := read(t, out); again.Members != 8 || again.Hashes["workers"] != r.Hashes["workers"] {
		t.Errorf("read again as a gang of %d", again.Members)
	}
	in.Groups[0].Count = 2
	fewer, stale := Apply(job, r, in)
	if len(stale) > 0 || !same(fewer, job) || Injected(fewer) == Injected(out) {
		t.Errorf("with two: stale %v, as before: %v", stale, Injected(fewer) == Injected(out))
	}
	in.Groups[0].Count = 1
	if _, stale := Apply(job, r, in); len(stale) != 1 {
		t.Error("fewer than the fewest are taken for a decision")
	}
	forged := parse(t, strings.Replace(gangJob("batch", gangGroup("workers", 8, `[{"min":2}]`)), `"Networks"`,
		`"Constraints":[{"LTarget":"${node.unique.id}","RTarget":"heteroflow,count=x,n1","Operand":"set_contains_any"}],"Networks"`, 1))
	if !same(forged, job) {
		t.Error("a count that is none changes the job")
	}
}

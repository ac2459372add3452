package admission

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// jobWith is a job whose one task has this accelerator value.
func jobWith(accelerator string) string {
	return fmt.Sprintf(`{"ID":"llm","TaskGroups":[{"Name":"serve","Tasks":[{"Name":"vllm","Driver":"heteroflow","Config":{"accelerator":%s}}]}]}`, accelerator)
}

func TestRead_Asks(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		block string
		want  accel.Ask
	}{
		"empty block is one whole card": {`[{}]`, accel.Ask{Count: 1}},
		"a map, as JSON jobs write it":  {`{"count":2}`, accel.Ask{Count: 2}},
		"everything": {
			`[{"count":2,"memory":"20GiB","compute":30,"qos":"silver","vendor":["nvidia","Ascend"],"model":["A100*"]}]`,
			accel.Ask{Count: 2, MemoryMiB: 20480, ComputePct: 30, QoS: accel.Silver, Vendors: []accel.Vendor{"nvidia", "ascend"}, Models: []string{"A100*"}},
		},
		"decimal unit is converted": {`[{"memory":"20GB"}]`, accel.Ask{Count: 1, MemoryMiB: 19074}},
		"number written as a float": {`[{"count":2.0}]`, accel.Ask{Count: 2}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := read(t, parse(t, jobWith(c.block)))
			if diff := cmp.Diff(&c.want, r.Request.Groups[0].Tasks[0].Ask); diff != "" {
				t.Errorf("ask (-want +got)\n%s", diff)
			}
			g := r.Request.Groups[0]
			if g.Count != 1 || g.CPUMHz != 100 || g.MemoryMiB != 300 || r.Request.Priority != 50 {
				t.Errorf("defaults of Nomad: %+v", g)
			}
		})
	}
}

func TestRead_Problems(t *testing.T) {
	t.Parallel()
	const block = "TaskGroups[0].Tasks[0].Config.accelerator"
	const at = block + "[0]"
	cases := map[string]struct {
		job      string
		wantPath string
		wantText string
	}{
		"memory without unit":         {jobWith(`[{"memory":"20"}]`), at + ".memory", `write "20GiB" or "20MiB"`},
		"memory as a number":          {jobWith(`[{"memory":20}]`), at + ".memory", `write "20GiB" or "20MiB"`},
		"memory as a list":            {jobWith(`[{"memory":["20GiB"]}]`), at + ".memory", `write memory = "20GiB"`},
		"compute too low":             {jobWith(`[{"memory":"1GiB","compute":5}]`), at + ".compute", "outside 10–100"},
		"compute too high":            {jobWith(`[{"memory":"1GiB","compute":101}]`), at + ".compute", "outside 10–100"},
		"compute as text":             {jobWith(`[{"memory":"1GiB","compute":"30"}]`), at + ".compute", "write it without quotes"},
		"negative count":              {jobWith(`[{"count":-1}]`), at + ".count", "-1 is negative"},
		"no card":                     {jobWith(`[{"count":0}]`), at + ".count", "write 1 or more"},
		"half a card":                 {jobWith(`[{"count":0.5}]`), at + ".count", "not a whole number"},
		"unknown brand":               {jobWith(`[{"vendor":["nvidea"]}]`), at + ".vendor", "write one of nvidia, mthreads"},
		"brand that is not in a list": {jobWith(`[{"vendor":"nvidia"}]`), at + ".vendor", `write vendor = ["nvidia"]`},
		"model that is no text":       {jobWith(`[{"model":[1]}]`), at + ".model[0]", `write model = ["A100*"]`},
		"unknown qos":                 {jobWith(`[{"qos":"platinum"}]`), at + ".qos", "gold, silver or bronze"},
		"unknown key":                 {jobWith(`[{"gpus":1}]`), at + ".gpus", "it has count, memory"},
		"two blocks":                  {jobWith(`[{},{}]`), block, "with count"},
		"not a block":                 {jobWith(`"20GiB"`), block, "is not a block"},
		"a list in a list":            {jobWith(`[[{}]]`), at, "is not a block"},
		"as JSON writes it":           {jobWith(`{"memory":"20"}`), block + ".memory", `write "20GiB" or "20MiB"`},
		"image of an unknown brand": {
			strings.Replace(jobWith(`[{}]`), `{"acc`, `{"images":{"nvidea":"x"},"acc`, 1), "TaskGroups[0].Tasks[0].Config.images.nvidea", "unknown brand",
		},
		"no image for a brand": {
			strings.Replace(jobWith(`[{"vendor":["nvidia","amd"]}]`), `{"acc`, `{"images":[{"nvidia":"x"}],"acc`, 1),
			"TaskGroups[0].Tasks[0].Config.images", `add amd = "…"`,
		},
		"another driver": {
			strings.Replace(jobWith(`[{}]`), `"heteroflow"`, `"docker"`, 1), block, `write driver = "heteroflow", or a device block`,
		},
		"beside a device block": {
			strings.Replace(jobWith(`[{}]`), `"Driver"`, `"Resources":{"Devices":[{"Name":"nvidia/gpu"}]},"Driver"`, 1),
			"TaskGroups[0].Tasks[0].Resources.Devices[0]", "leave out one of the two",
		},
		"negative allocations": {strings.Replace(jobWith(`[{}]`), `"Tasks"`, `"Count":-2,"Tasks"`, 1), "TaskGroups[0].Count", "-2 is negative"},
		"count as text":        {strings.Replace(jobWith(`[{}]`), `"Tasks"`, `"Count":"2","Tasks"`, 1), "TaskGroups[0].Count", `"2" is not a whole number`},
		"groups not in a list": {`{"ID":"j","TaskGroups":{}}`, "TaskGroups", "is not a list"},
		"a group that is null": {`{"ID":"j","TaskGroups":[null]}`, "TaskGroups[0]", "is not an object"},
		"one field twice": {
			strings.Replace(jobWith(`[{}]`), `"Driver"`, `"driver":"docker","Driver"`, 1), "TaskGroups[0].Tasks[0].Driver", "write Driver once",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, problems := Read(parse(t, c.job))
			if len(problems) != 1 || problems[0].Path != c.wantPath || !strings.Contains(problems[0].Text, c.wantText) {
				t.Errorf("got %+v, want one at %s that says %q", problems, c.wantPath, c.wantText)
			}
		})
	}
}

// A person is told the place once, by names; a program by a pointer into what it sent.
func TestProblem_InWords(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ job, wantText, wantPointer string }{
		"in a block": {
			jobWith(`[{"memory":"20"}]`), `group "serve", task "vllm", accelerator.memory: memory "20" has no unit: write "20GiB" or "20MiB"`,
			"/Job/TaskGroups/0/Tasks/0/Config/accelerator/0/memory",
		},
		"in an object": {
			jobWith(`{"compute":"30"}`), `group "serve", task "vllm", accelerator.compute: "30" is not a whole number: write it without quotes, for example compute = 30`,
			"/Job/TaskGroups/0/Tasks/0/Config/accelerator/compute",
		},
		"of a group": {
			strings.Replace(jobWith(`[{}]`), `"Tasks"`, `"Count":-2,"Tasks"`, 1),
			`group "serve", Count: -2 is negative: write how many allocations of the group are to run, 0 or more`, "/Job/TaskGroups/0/Count",
		},
		"a device block": {
			strings.Replace(jobWith(`[{}]`), `"Driver"`, `"Resources":{"Devices":[{"Name":"nvidia/gpu"}]},"Driver"`, 1),
			`group "serve", task "vllm", Resources.Devices[0]: device "nvidia/gpu" stands beside an accelerator block, and one task takes cards in one way: leave out one of the two`,
			"/Job/TaskGroups/0/Tasks/0/Resources/Devices/0",
		},
		"without a name": {`{"ID":"j","TaskGroups":[null]}`, "TaskGroups[0]: is not an object: write a group with a name and tasks", "/Job/TaskGroups/0"},
		"no job":         {`null`, "there is no job", "/Job"},
	} {
		var job Tree
		if c.job != "null" {
			job = parse(t, c.job)
		}
		_, problems := Read(job)
		if problems.Error() != c.wantText || problems[0].Pointer() != c.wantPointer {
			t.Errorf("%s: got %s at %s\nwant %s at %s", name, problems, problems[0].Pointer(), c.wantText, c.wantPointer)
		}
	}
}

func TestCheck_Cluster(t *testing.T) {
	t.Parallel()
	const at = "TaskGroups[0].Tasks[0].Config.accelerator[0]"
	catalog := engine.CatalogOf(testCluster())
	cases := map[string]struct{ block, wantPath, wantText string }{
		"fits":          {`[{"memory":"80GiB"}]`, "", ""},
		"memory":        {`[{"memory":"81GiB"}]`, at + ".memory", "write at most 80 GiB"},
		"unknown model": {`[{"model":["B200*"]}]`, at + ".model", "write one of A100-SXM4-80GB, H100-SXM5-80GB"},
		"absent brand":  {`[{"vendor":["amd"]}]`, at + ".vendor", "it has nvidia"},
		"count":         {`[{"count":5}]`, at + ".count", "write at most 4"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			problems := Check(read(t, parse(t, jobWith(c.block))), catalog)
			if c.wantPath == "" {
				if len(problems) > 0 {
					t.Errorf("got %v", problems)
				}
				return
			}
			if len(problems) != 1 || problems[0].Path != c.wantPath || !strings.Contains(problems[0].Text, c.wantText) {
				t.Errorf("got %+v", problems)
			}
		})
	}
}

func TestRead_ImagesLimitBrands(t *testing.T) {
	t.Parallel()
	for config, want := range map[string][]accel.Vendor{
		`{"images":{"ascend":"y","nvidia":"x"},"acc`:             {accel.NVIDIA, accel.Ascend},
		`{"images":{"ascend":"y"},"image":"for the others","acc`: nil,
		`{"image":"x","acc`: nil,
	} {
		r := read(t, parse(t, strings.Replace(jobWith(`[{}]`), `{"acc`, config, 1)))
		if diff := cmp.Diff(want, r.Request.Groups[0].Tasks[0].Ask.Vendors); diff != "" {
			t.Errorf("%s (-want +got)\n%s", config, diff)
		}
	}
}

func TestRead_Group(t *testing.T) {
	t.Parallel()
	r := read(t, parse(t, `{"ID":"llm","Namespace":"ml","Priority":70,"Datacenters":["*"],
		"Constraints":[{"LTarget":"${attr.cpu.arch}","RTarget":"amd64","Operand":"="}],
		"TaskGroups":[
			{"Name":"plain","Tasks":[{"Name":"x","Driver":"docker","Resources":{"Devices":[{"Name":"nvidia/gpu"}]}}]},
			{"Name":"serve","Count":2,"Constraints":[{"Operand":"distinct_hosts","RTarget":"true"},
				{"LTarget":"${node.unique.id}","RTarget":"heteroflow,n1","Operand":"set_contains_any"},
				{"LTarget":"${attr.nomad.version}","RTarget":">= 1.4.0","Operand":"semver"}],
			 "Tasks":[
				{"Name":"vllm","Driver":"heteroflow","Config":{"accelerator":{"memory":"1GiB"}},"Resources":{"CPU":500,"MemoryMB":1024},
				 "Constraints":[{"LTarget":"${meta.rack}","RTarget":"r1"}]},
				{"Name":"side","Driver":"docker","Resources":{"Cores":2}}]}]}`))
	ask := accel.Ask{Count: 1, MemoryMiB: 1024}
	want := engine.Request{
		JobID: "llm", Namespace: "ml", Priority: 70, NodePool: "default",
		Groups: []engine.GroupAsk{{
			Name: "serve", Count: 2, CPUMHz: 500, MemoryMiB: 1324, DiskMiB: 300, DistinctHosts: true,
			Constraints: []engine.Constraint{{L: "${attr.cpu.arch}", R: "amd64", Operand: "="}, {L: "${meta.rack}", R: "r1", Operand: "="}},
			Tasks:       []engine.TaskAsk{{Name: "vllm", Driver: "heteroflow", Runtime: "docker", Ask: &ask}, {Name: "side", Driver: "docker"}},
		}},
	}
	if diff := cmp.Diff(want, r.Request); diff != "" {
		t.Errorf("request (-want +got)\n%s", diff)
	}
}

// A task's runtime decides which nodes it may use. The default changes no name of an ask, so that what runs stays.
func TestRead_Runtime(t *testing.T) {
	t.Parallel()
	hashes := map[string]string{}
	for config, want := range map[string]string{
		`{"acc`: "docker", `{"runtime":"docker","acc`: "docker", `{"runtime":"process","acc`: "process", `{"runtime":"moon","acc`: "",
	} {
		r := read(t, parse(t, strings.Replace(jobWith(`[{}]`), `{"acc`, config, 1)))
		if got := r.Request.Groups[0].Tasks[0].Runtime; got != want {
			t.Errorf("%s: %q, want %q", config, got, want)
		}
		hashes[config] = r.Hashes["serve"]
	}
	if hashes[`{"acc`] != hashes[`{"runtime":"docker","acc`] || hashes[`{"acc`] == hashes[`{"runtime":"process","acc`] {
		t.Errorf("names of the asks: %v", hashes)
	}
	other := read(t, parse(t, `{"ID":"j","TaskGroups":[{"Name":"g","Tasks":[
		{"Name":"a","Driver":"heteroflow","Config":{"accelerator":{}}},{"Name":"b","Driver":"docker","Config":{"runtime":"process"}}]}]}`))
	if got := other.Request.Groups[0].Tasks[1].Runtime; got != "" {
		t.Errorf("another driver's config was read: %q", got)
	}
}

func TestRead_Loose(t *testing.T) {
	t.Parallel()
	for extra, want := range map[string]string{
		`"Type":"system"`: "system", `"Periodic":{"Spec":"@daily"}`: "periodic", `"ParameterizedJob":{}`: "parameterized", `"Type":"batch"`: "",
	} {
		if r := read(t, parse(t, strings.Replace(jobWith(`[{}]`), `"ID"`, extra+`,"ID"`, 1))); r.Request.Loose != want {
			t.Errorf("%s: %q, want %q", extra, r.Request.Loose, want)
		}
	}
}

// FuzzRead holds that no JSON makes the way of a job panic, and that what is read once is read the same again.
func FuzzRead(f *testing.F) {
	for _, text := range jobTexts(f) {
		f.Add(text)
	}
	f.Add([]byte(jobWith(`[{"memory":"20GiB","count":1e400}]`)))
	f.Add([]byte(`{"TaskGroups":[{"Services":[null],"Tasks":[{"Resources":{"Devices":[null,{"Constraints":[null]}]}}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		job, err := Decode(text)
		if err != nil {
			return
		}
		r, problems := Read(job)
		for _, p := range problems {
			if p.Text == "" {
				t.Errorf("a problem without text at %q", p.Path)
			}
		}
		_, stale := Apply(job, r, Injection{})
		if len(stale) != len(r.Request.Groups) {
			t.Errorf("%d of %d groups stale without an injection", len(stale), len(r.Request.Groups))
		}
		first, err := SpecHash(job)
		if err != nil {
			return
		}
		known, unknown, _ := canonical(job)
		if wantKnown, wantUnknown := asText(t, job); sum([]any{known, unknown}) != sum([]any{wantKnown, wantUnknown}) {
			t.Errorf("%s beside %s, by its text %s beside %s", jsonOf(t, known), jsonOf(t, unknown), jsonOf(t, wantKnown), jsonOf(t, wantUnknown))
		}
		again, err := json.Marshal(job)
		if err != nil {
			t.Fatal(err)
		}
		tree, err := Decode(again)
		if err != nil {
			t.Fatal(err)
		}
		if second, err := SpecHash(tree); err != nil || second != first {
			t.Errorf("hash %q, again %q, %v", first, second, err)
		}
	})
}

// jobTexts are the jobs of the test data.
func jobTexts(t testing.TB) (texts [][]byte) {
	t.Helper()
	for _, pattern := range []string{"testdata/golden/*/*.json", "testdata/hash/*/*.json"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, text)
		}
	}
	return texts
}

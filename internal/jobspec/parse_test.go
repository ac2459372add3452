package jobspec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/hcl/v2/hclwrite"
)

func TestParse_Errors(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		src  string
		vars map[string]string
		want []string // each is part of the message
	}{
		"text that is no HCL":        {"job \"x\" {\n  name = \n}", nil, []string{"a.hcl:2,10-3,1: Invalid expression"}},
		"no job":                     {"variable \"x\" { default = 1 }", nil, []string{"a.hcl:1,1-", "no job block", `job "name"`}},
		"two jobs":                   {"job \"x\" {}\njob \"y\" {}", nil, []string{"a.hcl:2,1-4: duplicate job block", "a.hcl:1,1-4"}},
		"job without a name":         {"job {}", nil, []string{"a.hcl:1,1-4: missing name for job"}},
		"job with two names":         {`job "a" "b" {}`, nil, []string{"extraneous label for job"}},
		"argument outside":           {"foo = 1\njob \"x\" {}", nil, []string{"a.hcl:1,1-4: unsupported argument", "expected are job, locals, variable, variables"}},
		"unknown block":              {"job \"x\" {\n  gruop \"g\" {}\n}", nil, []string{"a.hcl:2,3-8: unsupported block", `did you mean "group"?`}},
		"unknown argument":           {"job \"x\" {\n  group \"g\" {\n    cuont = 1\n  }\n}", nil, []string{"a.hcl:3,5-10: unsupported argument", `did you mean "count"?`}},
		"several problems":           {"job \"x\" {\n  a = 1\n  priority = \"high\"\n}", nil, []string{"a.hcl:2,3-4", "a.hcl:3,14-20: unsuitable value; priority: a number is required"}},
		"block as argument":          {"job \"x\" {\n  update = {}\n}", nil, []string{"update is a block: write update { … }, without ="}},
		"argument as block":          {"job \"x\" {\n  priority {}\n}", nil, []string{"priority is an argument: write priority = …"}},
		"two blocks of one":          {"job \"x\" {\n  update {}\n  update {}\n}", nil, []string{"a.hcl:3,3-9: duplicate update block", "the first is at a.hcl:2,3-9"}},
		"block and argument":         {"job \"x\" {\n  meta { a = 1 }\n  meta = { b = 1 }\n}", nil, []string{"duplicate meta", "a.hcl:3,3-7"}},
		"duration without unit":      {"job \"x\" {\n  group \"g\" { shutdown_delay = \"5\" }\n}", nil, []string{`"5" is not a duration`, `"30s"`}},
		"duration of a bool":         {"job \"x\" {\n  group \"g\" { shutdown_delay = true }\n}", nil, []string{"a duration is needed"}},
		"not a whole number":         {"job \"x\" { priority = 1.5 }", nil, []string{"priority: value must be a whole number"}},
		"number out of range":        {"job \"x\" {\n  affinity { weight = 500 }\n}", nil, []string{"weight: value must be a whole number, between -128 and 127"}},
		"text for a list":            {"job \"x\" { datacenters = \"dc1\" }", nil, []string{"datacenters: list of string required"}},
		"null in env":                {"job \"x\" {\n  meta = { a = null }\n}", nil, []string{`the value of "a" is null`}},
		"null in a meta block":       {"job \"x\" {\n  meta { a = null }\n}", nil, []string{"a is null: give it a value or leave it out"}},
		"block in meta":              {"job \"x\" {\n  meta {\n    a {}\n  }\n}", nil, []string{"a meta block has only arguments: write a = …"}},
		"missing argument":           {"job \"x\" {\n  task \"t\" {\n    lifecycle { sidecar = true }\n  }\n}", nil, []string{"missing argument", "a lifecycle block needs hook = …"}},
		"unknown function":           {"job \"x\" { name = nope(1) }", nil, []string{`no function named "nope"`}},
		"dropped short operator":     {"job \"x\" {\n  constraint { is_set = true }\n}", nil, []string{`write operator = "is_set"`}},
		"scaling of nothing":         {"job \"x\" {\n  task \"t\" {\n    scaling \"gpu\" {}\n  }\n}", nil, []string{`write scaling "cpu" or scaling "mem"`}},
		"dynamic in config":          {"job \"x\" {\n  task \"t\" {\n    config {\n      dynamic \"mount\" {}\n    }\n  }\n}", nil, []string{"does not expand dynamic blocks inside config"}},
		"dynamic without list":       {"job \"x\" {\n  dynamic \"group\" {\n    content {}\n  }\n}", nil, []string{"missing for_each"}},
		"dynamic over a number":      {"job \"x\" {\n  dynamic \"group\" {\n    for_each = 5\n    content {}\n  }\n}", nil, []string{"for_each needs a list, a set or a map"}},
		"dynamic without body":       {"job \"x\" {\n  dynamic \"group\" { for_each = [] }\n}", nil, []string{"missing content block"}},
		"dynamic, odd argument":      {"job \"x\" {\n  dynamic \"group\" {\n    foreach = []\n    content {}\n  }\n}", nil, []string{`did you mean "for_each"?`}},
		"number of a million digits": {"job \"x\" { priority = 1e99999999 }", nil, []string{"too large or too small"}},
		"files on a server":          {"job \"x\" { name = file(\"/etc/passwd\") }", nil, []string{"files cannot be read on the server"}},

		"variable without value":  {"variable \"x\" {}\njob \"j\" { name = var.x }", nil, []string{"a.hcl:1,1-", "set x with -var x=…, or give it a default"}},
		"variable declared twice": {"variable \"x\" { default = 1 }\nvariable \"x\" { default = 1 }\njob \"j\" {}", nil, []string{"duplicate variable"}},
		"variable of no type":     {"variable \"x\" { type = text }\njob \"j\" {}", nil, []string{"text"}},
		"default of other type":   {"variable \"x\" {\n  type = number\n  default = \"q\"\n}\njob \"j\" {}", nil, []string{"a.hcl:3,13-16", "a number is required"}},
		"value of other type":     {"variable \"x\" { type = number }\njob \"j\" {}", map[string]string{"x": "q"}, []string{"variable x", "declared at a.hcl:1,1-"}},
		"value of no variable":    {"job \"j\" {}", map[string]string{"y": "q"}, []string{"-var y=…", `no block variable "y"`}},
		"rule of a variable":      {"variable \"x\" {\n  default = 5\n  validation {\n    condition = var.x > 10\n    error_message = \"x must be over 10.\"\n  }\n}\njob \"j\" {}", nil, []string{"a.hcl:1,1-13: value of variable x is refused; x must be over 10."}},
		"local of itself":         {"locals {\n  a = local.b\n  b = local.a\n}\njob \"j\" {}", nil, []string{"local values need each other"}},
		"unknown variable":        {"job \"j\" { name = var.nope }", nil, []string{`"nope"`}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job, err := Parse("a.hcl", []byte(c.src), c.vars)
			if err == nil {
				t.Fatalf("no error, job %+v", job)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q\ndoes not say %q", err, want)
				}
			}
		})
	}
}

func TestParse_Variables(t *testing.T) {
	t.Parallel()
	const src = `
variable "text" {}
variable "number" { type = number }
variable "list" { type = list(string) }
variable "map" {
  type = map(string)
  default = { a = "b" }
}
variable "guessed" { default = 5 }
job "j" {
  datacenters = var.list
  priority    = var.number
  meta {
    text    = var.text
    guessed = var.guessed
    map     = jsonencode(var.map)
  }
}
`
	job, err := ParseWith("a.hcl", []byte(src), Options{
		Vars:    map[string]string{"text": `["kept as text"]`, "list": `["dc1","dc2"]`, "guessed": "7"},
		VarFile: "number = 60\ntext = \"from the file\"\nunused = 1\nmap = { c = 1 }\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"dc1", "dc2"}, job.Datacenters); diff != "" {
		t.Errorf("datacenters (-want +got):\n%s", diff)
	}
	if *job.Priority != 60 {
		t.Errorf("priority = %d, want 60", *job.Priority)
	}
	want := map[string]string{"text": `["kept as text"]`, "guessed": "7", "map": `{"c":"1"}`}
	if diff := cmp.Diff(want, job.Meta); diff != "" {
		t.Errorf("meta (-want +got):\n%s", diff)
	}
}

func TestVarFile(t *testing.T) {
	t.Parallel()
	const src = `
variable "text" {}
variable "number" { type = number }
variable "list" { type = list(string) }
job "j" {}
`
	vars := map[string]string{"text": "007", "number": "60", "list": `["a", "${b}"]`}
	if _, err := VarFile("a.hcl", []byte(src), "number = 7\nunused = 1\n", vars); err == nil {
		t.Error("a value that refers to something is taken")
	}
	vars["list"] = `["a", "b"]`
	got, err := VarFile("a.hcl", []byte(src), "number = 7\nunused = 1\n", vars)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("list   = [\"a\", \"b\"]\nnumber = 60\ntext   = \"007\"\n", string(hclwrite.Format([]byte(got)))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestParse_RuntimeKept lists what Nomad resolves on the node and in the task: it must arrive as it was written.
func TestParse_RuntimeKept(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"${NOMAD_ALLOC_ID}", "${NOMAD_PORT_http}:${NOMAD_PORT_grpc}", "${attr.cpu.arch}", "${attr.unique.network.ip-address}",
		"${node.unique.id}", "${node.class}", "${meta.rack}", "${meta.a.b}", "${device.model}", "${ NOMAD_JOB_NAME }", "a ${unknown.thing} b",
	} {
		job, err := Parse("a.hcl", []byte("job \"j\" {\n  name = \""+text+"\"\n}\n"), nil)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if *job.Name != text {
			t.Errorf("%s became %s", text, *job.Name)
		}
	}
}

func TestParse_HandsVaultDown(t *testing.T) {
	t.Parallel()
	job, err := Parse("a.hcl", []byte(`
job "j" {
  vault { role = "job" }
  group "g" {
    vault { role = "group" }
    task "a" {}
    task "b" {
      vault { role = "own" }
    }
  }
  group "h" {
    task "c" {}
  }
}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, g := range job.TaskGroups {
		for _, task := range g.Tasks {
			got[task.Name] = task.Vault.Role
		}
	}
	if diff := cmp.Diff(map[string]string{"a": "group", "b": "own", "c": "job"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseWith_Files(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "words.txt")
	if err := os.WriteFile(name, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	src := `job "j" {
  meta {
    a = file("` + name + `")
    b = join(",", fileset("` + filepath.Dir(name) + `", "*.txt"))
    c = fileexists("` + name + `")
  }
}`
	job, err := ParseWith("a.hcl", []byte(src), Options{Files: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"a": "hello", "b": "words.txt", "c": "true"}, job.Meta); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/oracle/*.nomad.hcl")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(src))
	}
	f.Add("job \"x\" {\n  dynamic \"group\" {\n    for_each = [1]\n    labels = [\"${group.key}\"]\n    content {}\n  }\n}")
	f.Fuzz(func(t *testing.T, src string) {
		job, err := Parse("a.hcl", []byte(src), nil)
		if (job == nil) == (err == nil) {
			t.Fatalf("job %v and error %v", job, err)
		}
		if job != nil {
			job.Canonicalize()
		}
	})
}

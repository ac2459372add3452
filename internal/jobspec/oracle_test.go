package jobspec

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
)

var update = flag.Bool("update", false, "record what the nomad on PATH prints for each job file of testdata/oracle")

// TestParse_SameAsNomad compares with what `nomad job run -output FILE` printed for our own job files; the version
// stands in testdata/oracle/SOURCE. Both jobs are canonicalized, since the command leaves out what is not set.
func TestParse_SameAsNomad(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/oracle/*.nomad.hcl")
	if err != nil || len(files) == 0 {
		t.Fatalf("no job files: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			recorded := strings.TrimSuffix(file, ".nomad.hcl") + ".json"
			if *update {
				record(t, file, recorded)
			}
			want, err := os.ReadFile(recorded)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, file, want)
		})
	}
}

// TestParse_SameAsNomadOnPath compares with the nomad of this machine, so that a newer one shows what it reads
// differently.
func TestParse_SameAsNomadOnPath(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"nomad", "nomad-1.6"} {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Logf("%s is not on PATH: compared with the recorded outputs only", program)
			continue
		}
		files, err := filepath.Glob("testdata/oracle/*.nomad.hcl")
		if err != nil {
			t.Fatal(err)
		}
		examples, err := filepath.Glob("../../jobspecs/*.nomad.hcl")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range append(files, examples...) {
			t.Run(program+"/"+filepath.Base(file), func(t *testing.T) {
				t.Parallel()
				out, err := nomadOutput(path, file)
				if err != nil {
					t.Skipf("%s does not read this file, which uses newer blocks: %s", program, out)
				}
				compare(t, file, out)
			})
		}
	}
}

func record(t *testing.T, file, recorded string) {
	t.Helper()
	out, err := nomadOutput("nomad", file)
	if err != nil {
		t.Fatalf("nomad job run -output %s: %v\n%s", file, err, out)
	}
	if err := os.WriteFile(recorded, out, 0o644); err != nil {
		t.Fatal(err)
	}
}

func nomadOutput(program, file string) ([]byte, error) {
	return exec.Command(program, "job", "run", "-output", file).Output()
}

func compare(t *testing.T, file string, oracle []byte) {
	t.Helper()
	var want struct{ Job *api.Job }
	if err := json.Unmarshal(oracle, &want); err != nil {
		t.Fatal(err)
	}
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseWith(file, src, Options{Files: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tree(t, want.Job), tree(t, got)); diff != "" {
		t.Errorf("as read (-nomad +ours):\n%s", diff)
	}
	want.Job.Canonicalize()
	got.Canonicalize()
	if diff := cmp.Diff(tree(t, want.Job), tree(t, got)); diff != "" {
		t.Errorf("canonicalized (-nomad +ours):\n%s", diff)
	}
}

// tree is the JSON of a job without members that say nothing: null and the empty list, which the two readers use
// alike.
func tree(t *testing.T, job *api.Job) any {
	t.Helper()
	text, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var out any
	if err := decoder.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return prune(out)
}

func prune(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, member := range v {
			member = prune(member)
			if list, ok := member.([]any); member == nil || (ok && len(list) == 0) {
				delete(v, key)
				continue
			}
			v[key] = member
		}
	case []any:
		for i := range v {
			v[i] = prune(v[i])
		}
	}
	return value
}

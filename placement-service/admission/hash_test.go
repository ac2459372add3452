package admission

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func load(t *testing.T, file string) Tree {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := Decode(text)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return tree
}

func parse(t *testing.T, text string) Tree {
	t.Helper()
	tree, err := Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func hashOf(t *testing.T, job Tree) string {
	t.Helper()
	h, err := SpecHash(job)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestSpecHash_Clients holds that one file is one job, whichever client sends it and when Nomad gives it back.
func TestSpecHash_Clients(t *testing.T) {
	t.Parallel()
	dirs, err := filepath.Glob("testdata/hash/*/cli-2.0.json")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no jobs: %v", err)
	}
	for _, file := range dirs {
		dir := filepath.Dir(file)
		files, err := filepath.Glob(filepath.Join(dir, "*.json"))
		if err != nil || len(files) < 2 {
			t.Fatalf("%s: %d files, %v", dir, len(files), err)
		}
		first := load(t, files[0])
		for _, f := range files[1:] {
			other := load(t, f)
			if hashOf(t, first) != hashOf(t, other) {
				t.Errorf("%s and %s differ:\n%s", files[0], f, cmp.Diff(settled(t, first), settled(t, other)))
			}
			a, _ := Read(first)
			b, _ := Read(other)
			if diff := cmp.Diff(a.Hashes, b.Hashes); diff != "" {
				t.Errorf("asks of %s and %s differ\n%s", files[0], f, cmp.Diff(a.Request, b.Request))
			}
		}
	}
}

// settled is what SpecHash sums up, for a readable difference.
func settled(t *testing.T, job Tree) any {
	t.Helper()
	typed, unknown, err := canonical(job)
	if err != nil {
		t.Fatal(err)
	}
	return []any{typed, unknown}
}

func TestSpecHash_Changes(t *testing.T) {
	t.Parallel()
	base := `{"ID":"j","TaskGroups":[{"Name":"g","Count":1,"Tasks":[{"Name":"t","Driver":"heteroflow","Config":{"image":"x"}}]}]}`
	cases := map[string]struct {
		job  string
		same bool
	}{
		"default count left out":       {`{"ID":"j","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Driver":"heteroflow","Config":{"image":"x"}}]}]}`, true},
		"nulls and counters":           {strings.Replace(base, `"ID":"j"`, `"ID":"j","Version":7,"Status":"running","Meta":null,"Constraints":[]`, 1), true},
		"keys in other case":           {strings.ReplaceAll(base, `"TaskGroups"`, `"taskgroups"`), true},
		"a grant":                      {strings.Replace(base, `"image":"x"`, `"image":"x","grant":"hfg1.a.b"`, 1), true},
		"another image":                {strings.Replace(base, `"x"`, `"y"`, 1), false},
		"another count":                {strings.Replace(base, `"Count":1`, `"Count":2`, 1), false},
		"count of zero":                {strings.Replace(base, `"Count":1`, `"Count":0`, 1), false},
		"a field nobody knows yet":     {strings.Replace(base, `"Count":1`, `"Count":1,"Novelty":{"a":1}`, 1), false},
		"a null in a field nobody has": {strings.Replace(base, `"Count":1`, `"Count":1,"Novelty":null`, 1), true},
	}
	want := hashOf(t, parse(t, base))
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := hashOf(t, parse(t, c.job)); (got == want) != c.same {
				t.Errorf("same hash: %v, want %v", got == want, c.same)
			}
		})
	}
}

func TestSpecHash_BadJob(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"TaskGroups":"x"}`, `{"TaskGroups":[null]}`, `{"TaskGroups":[{"Tasks":[null]}]}`, `{"TaskGroups":[{"Services":[null]}]}`,
	} {
		if _, err := SpecHash(parse(t, text)); err == nil {
			t.Errorf("%s: no error", text)
		}
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}
